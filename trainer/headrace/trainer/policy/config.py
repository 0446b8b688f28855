"""A model's shape: a Hugging Face config, read for Megatron.

Only what is known to compute the same is taken; anything else is refused by name, never ignored.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import PretrainedConfig

from headrace.trainer.policy.parallel import Parallel

_FAMILIES: Final = ("llama", "qwen2", "qwen3")
# What Megatron computes for Llama 3's positions, beside the factor.
_LLAMA3: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class UnsupportedModelError(ValueError):
    """A model that Megatron would not compute as its Hugging Face config says."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the mapping needs to know of a model."""

    num_layers: int
    num_heads: int
    num_groups: int
    head_dim: int
    vocab_size: int
    is_tied: bool
    has_qkv_bias: bool
    has_qk_norm: bool

    @classmethod
    def of(cls, hf: PretrainedConfig) -> "Shape":
        """UnsupportedModelError where the model is none that is known."""
        _check(hf)
        return cls(
            num_layers=hf.num_hidden_layers,
            num_heads=hf.num_attention_heads,
            num_groups=hf.num_key_value_heads,
            head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
            vocab_size=hf.vocab_size,
            is_tied=bool(hf.tie_word_embeddings),
            has_qkv_bias=hf.model_type == "qwen2",
            has_qk_norm=hf.model_type == "qwen3",
        )

    def padded_vocab_size(self, tp_size: int) -> int:
        """Rows of the embedding, so that every tensor-parallel rank has as many."""
        return math.ceil(self.vocab_size / tp_size) * tp_size


@dataclass(frozen=True, slots=True)
class Positions:
    """Rotary embeddings, in Megatron's terms."""

    base: float
    is_llama3: bool = False
    llama3_factor: float = 1.0
    interpolation: float | None = None

    @classmethod
    def of(cls, hf: PretrainedConfig) -> "Positions":
        rope: dict[str, Any] = getattr(hf, "rope_parameters", None) or {}
        base = float(rope.get("rope_theta") or getattr(hf, "rope_theta", None) or 10000.0)
        kind = rope.get("rope_type", "default")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError("partial_rotary_factor is not supported")
        if kind == "default":
            return cls(base)
        if kind == "linear":
            return cls(base, interpolation=float(rope["factor"]))
        if kind == "llama3" and all(rope[name] == value for name, value in _LLAMA3.items()):
            return cls(base, is_llama3=True, llama3_factor=float(rope["factor"]))
        raise UnsupportedModelError(f"rope_parameters are not supported: {rope}")


def transformer_config(hf: PretrainedConfig, parallel: Parallel, dtype: torch.dtype) -> TransformerConfig:
    """UnsupportedModelError where the model can't be spread as `parallel` says."""
    shape = Shape.of(hf)
    _check_spread(shape, parallel)
    on_cuda = parallel.device.type == "cuda"
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_groups,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.has_qkv_bias,
        qk_layernorm=shape.has_qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not on_cuda,
        # Every weight is loaded later, but it is here that those of tensor-parallel ranks get their mark, by
        # which the gradient's norm counts each weight once.
        perform_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        attention_softmax_in_fp32=True,
        # Micro-batches have shapes of their own, which pipeline stages tell each other.
        variable_seq_lengths=True,
        # Of experts, which there are none of: the default refuses shapes that vary.
        moe_token_dispatcher_type="alltoall",  # noqa: S106  no secret
        batch_p2p_comm=on_cuda,
        overlap_p2p_comm=False,
        tensor_model_parallel_size=parallel.tp_size,
        pipeline_model_parallel_size=parallel.pp_size,
        sequence_parallel=parallel.settings.sequence and parallel.tp_size > 1,
        # Gradients of the sum over all micro-batches and ranks: Megatron's mean is over the tokens that it is
        # told of, and it is told of none.
        calculate_per_token_loss=True,
        cuda_graph_scope=[],
    )


def _check(hf: PretrainedConfig) -> None:
    if hf.model_type not in _FAMILIES:
        raise UnsupportedModelError(f"{hf.model_type} is none of {', '.join(_FAMILIES)}")
    wanted = {
        "hidden_act": "silu",
        "mlp_bias": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
    }
    if hf.model_type != "qwen2":
        wanted["attention_bias"] = False
    for name, value in wanted.items():
        if getattr(hf, name, value) != value:
            raise UnsupportedModelError(f"{name} = {getattr(hf, name)} is not supported")


def _check_spread(shape: Shape, parallel: Parallel) -> None:
    tp_size, pp_size = parallel.tp_size, parallel.pp_size
    if shape.num_heads % tp_size or shape.num_groups % tp_size:
        raise UnsupportedModelError(
            f"{shape.num_heads} heads and {shape.num_groups} key-value heads can't be spread over "
            f"{tp_size} tensor-parallel ranks"
        )
    if shape.num_layers % pp_size:
        raise UnsupportedModelError(
            f"{shape.num_layers} layers can't be spread over {pp_size} pipeline stages"
        )
    rows = shape.padded_vocab_size(tp_size) // tp_size
    if shape.vocab_size <= rows * (tp_size - 1):
        raise UnsupportedModelError(
            f"{shape.vocab_size} tokens are too few for {tp_size} tensor-parallel ranks"
        )
