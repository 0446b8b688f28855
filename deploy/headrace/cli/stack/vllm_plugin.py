"""A plugin of vLLM, which loads it in every process: on a CPU, new weights reach a tied head.

There vLLM (0.32) packs a head's weights once, for speed. Where the head is the embeddings, as in most small
models, a reload writes the embeddings and packs nothing: logits go on to come from the old head.
"""


def register() -> None:
    """Called by vLLM, by its entry point `vllm.general_plugins`."""
    from vllm.platforms import current_platform  # noqa: PLC0415  vLLM's own process

    if not current_platform.is_cpu():
        return
    import torch  # noqa: PLC0415
    from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: PLC0415
        UnquantizedEmbeddingMethod,
    )

    def leave_unpacked(_method: object, layer: torch.nn.Module) -> None:
        # As vLLM sets it: a function that takes the weight each time.
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    UnquantizedEmbeddingMethod.process_weights_after_loading = leave_unpacked  # type: ignore[method-assign,assignment]
