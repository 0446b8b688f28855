"""PolicyModel: Megatron's GPTModel, which answers with logprobs and entropies instead of logits.

Logits exist for a few positions at a time: a whole batch's can be larger than all else together.
Shape legend: B samples, S positions, H hidden, N positions of all samples.
"""

from importlib.util import find_spec
from typing import Any, Final

import torch
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig

from headrace.trainer.policy.attention import CausalAttention
from headrace.trainer.policy.config import Positions, Shape, transformer_config
from headrace.trainer.policy.distribution import token_statistics
from headrace.trainer.policy.norm import MarkedRMSNorm
from headrace.trainer.policy.parallel import Parallel

# Logits at once, of one rank: 256 MiB in float32, of which a backward pass holds a few.
_MAX_LOGITS: Final = 1 << 26


class PolicyModel(GPTModel):  # type: ignore[misc]  # untyped
    """Called with token ids as `labels`; the last stage answers (2, B, S): logprobs and entropies.

    Index t speaks of token t, position 0 is 0. Other stages answer hidden states.
    """

    def __init__(
        self,
        config: TransformerConfig,
        shape: Shape,
        parallel: Parallel,
        *,
        temperature: float,
        **kwargs: Any,  # noqa: ANN401  Megatron's own
    ) -> None:
        super().__init__(config=config, vocab_size=shape.padded_vocab_size(parallel.tp_size), **kwargs)
        self.max_logits = _MAX_LOGITS
        self._temperature = temperature
        self._tp_group = parallel.tp_group
        rows = shape.padded_vocab_size(parallel.tp_size) // parallel.tp_size
        self._first_token = rows * parallel.tp_rank
        # The rows that pad the vocabulary are no tokens, and take no part in the distribution.
        self._num_tokens = min(rows, shape.vocab_size - self._first_token)
        if self.post_process and config.sequence_parallel:
            # The head sees whole sequences, gathered once before it.
            self.output_layer.sequence_parallel = False
            self.output_layer.allreduce_dgrad = True

    def _postprocess(
        self, hidden_states: torch.Tensor, *, labels: torch.Tensor, **_others: object
    ) -> torch.Tensor:
        if not self.post_process:
            return hidden_states
        if self.config.sequence_parallel:
            hidden_states = gather_from_sequence_parallel_region(
                hidden_states, tensor_parallel_output_grad=False
            )
        # What is known after token t - 1 is about token t.
        hidden_NH = hidden_states[:-1].flatten(0, 1)
        targets_N = labels.t()[1:].flatten()
        size = max(1, self.max_logits // self._num_tokens)
        parts = []
        for part_NH, part_N in zip(torch.split(hidden_NH, size), torch.split(targets_N, size), strict=True):
            if len(part_N) == len(targets_N):
                parts.append(self._statistics(part_NH, part_N))
            else:
                parts.append(
                    checkpoint(
                        self._statistics, part_NH, part_N, use_reentrant=False, preserve_rng_state=False
                    )
                )
        # Position 0, and a way for gradients where there is no other.
        first_2B = hidden_states[:1, :, 0].float().expand(2, -1) * 0.0
        statistics_2N = torch.cat([first_2B, *parts], dim=1)
        num_samples, num_positions = labels.shape
        return statistics_2N.view(2, num_positions, num_samples).transpose(1, 2)

    def _statistics(self, hidden_NH: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        weight = None
        if self.share_embeddings_and_output_weights:
            weight = self.shared_embedding_or_output_weight()
        logits_N1V, _ = self.output_layer(hidden_NH[:, None], weight=weight)
        statistics = token_statistics(
            logits_N1V[:, 0, : self._num_tokens],
            targets_N,
            first=self._first_token,
            temperature=self._temperature,
            group=self._tp_group,
        )
        return torch.stack(statistics)


def build_model(
    hf: PretrainedConfig, parallel: Parallel, *, dtype: torch.dtype, temperature: float
) -> PolicyModel:
    """This rank's part, on its device, in `dtype`; its weights mean nothing yet."""
    config = transformer_config(hf, parallel, dtype)
    positions = Positions.of(hf)
    model = PolicyModel(
        config,
        Shape.of(hf),
        parallel,
        temperature=temperature,
        transformer_layer_spec=_layer_spec(config, parallel),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel.is_first_stage,
        post_process=parallel.is_last_stage,
        parallel_output=True,
        share_embeddings_and_output_weights=bool(hf.tie_word_embeddings),
        position_embedding_type="rope",
        rotary_base=positions.base,
        rope_scaling=positions.is_llama3,
        rope_scaling_factor=positions.llama3_factor,
        seq_len_interpolation_factor=positions.interpolation,
    )
    # Norms are made in float32, whatever the rest is.
    model.to(device=parallel.device, dtype=dtype)
    return model


def has_transformer_engine() -> bool:
    return find_spec("transformer_engine") is not None


def _layer_spec(config: TransformerConfig, parallel: Parallel) -> ModuleSpec | TransformerBlockSubmodules:
    if parallel.device.type == "cuda" and has_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=config.qk_layernorm)
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layer.submodules.input_layernorm = MarkedRMSNorm
    layer.submodules.pre_mlp_layernorm = MarkedRMSNorm
    attention = layer.submodules.self_attention.submodules
    attention.core_attention = CausalAttention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = MarkedRMSNorm
    num_layers = config.num_layers // parallel.pp_size
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=MarkedRMSNorm)
