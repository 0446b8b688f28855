"""Hugging Face's weights as Megatron's, and back: what stands where, and how it is cut.

Pure: from names and shapes alone. A rule makes one tensor-parallel rank's tensor from whole ones, and the
whole ones from every rank's, without loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import pad

from headrace.trainer.policy.config import Shape


class Rule(Protocol):
    """How one of Megatron's tensors comes from Hugging Face's of the names in `hf`."""

    @property
    def hf(self) -> tuple[str, ...]: ...

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        """The tensor of tensor-parallel rank `rank` of `size`."""
        ...

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """From every rank's, in order, one for each of `hf`."""
        ...


@dataclass(frozen=True, slots=True)
class Same:
    """Every rank has all of it."""

    hf: tuple[str]

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        del rank, size
        return whole[0]

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (shards[0],)


@dataclass(frozen=True, slots=True)
class Cut:
    """Along one dimension."""

    hf: tuple[str]
    dim: int

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        return whole[0].chunk(size, self.dim)[rank]

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (torch.cat(tuple(shards), self.dim),)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Along the tokens, with rows of zeros at the end so that every rank has as many."""

    hf: tuple[str]
    num_tokens: int

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        missing = -self.num_tokens % size
        return pad(whole[0], (0, 0, 0, missing)).chunk(size)[rank]

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (torch.cat(tuple(shards))[: self.num_tokens],)


@dataclass(frozen=True, slots=True)
class Attention:
    """Query, key and value as one, group by group: the group's queries, its key, its value."""

    hf: tuple[str, str, str]
    num_heads: int
    num_groups: int
    head_dim: int

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        by_group = [self._by_group(tensor) for tensor in whole]
        return torch.cat(by_group, dim=1).chunk(size)[rank].flatten(0, 1)

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        by_group = self._by_group(torch.cat(tuple(shards)))
        queries = self.num_heads // self.num_groups * self.head_dim
        parts = torch.split(by_group, [queries, self.head_dim, self.head_dim], dim=1)
        return tuple(part.flatten(0, 1) for part in parts)

    def _by_group(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(self.num_groups, -1, *tensor.shape[1:])


@dataclass(frozen=True, slots=True)
class GateUp:
    """Both as one on each rank: its part of the gate, its part of the up projection."""

    hf: tuple[str, str]

    def shard(self, whole: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in whole])

    def join(self, shards: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        parts = zip(*(shard.chunk(2) for shard in shards), strict=True)
        return tuple(torch.cat(part) for part in parts)


EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


def rules(shape: Shape, layers: Sequence[int]) -> dict[str, Rule]:
    """By Megatron's names, for a stage that has these of the model's layers (from 0).

    Names of both kinds of layers, with and without Transformer Engine; a stage has a part of the names.
    """
    found: dict[str, Rule] = {
        "embedding.word_embeddings.weight": Vocabulary((EMBEDDING,), shape.vocab_size),
        "decoder.final_layernorm.weight": Same(("model.norm.weight",)),
        # The last stage's own copy where it is tied to the first's.
        "output_layer.weight": Vocabulary((EMBEDDING if shape.is_tied else HEAD,), shape.vocab_size),
    }
    for place, layer in enumerate(layers):
        for name, rule in _layer_rules(shape, f"model.layers.{layer}").items():
            found[f"decoder.layers.{place}.{name}"] = rule
    return found


def _layer_rules(shape: Shape, layer: str) -> dict[str, Rule]:
    before_attention = Same((f"{layer}.input_layernorm.weight",))
    before_mlp = Same((f"{layer}.post_attention_layernorm.weight",))
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    found: dict[str, Rule] = {
        "input_layernorm.weight": before_attention,
        "self_attention.linear_qkv.layer_norm_weight": before_attention,
        "self_attention.linear_proj.weight": Cut((f"{attention}.o_proj.weight",), dim=1),
        "pre_mlp_layernorm.weight": before_mlp,
        "mlp.linear_fc1.layer_norm_weight": before_mlp,
        "mlp.linear_fc1.weight": GateUp((f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")),
        "mlp.linear_fc2.weight": Cut((f"{mlp}.down_proj.weight",), dim=1),
    }
    for kind in ("weight", "bias") if shape.has_qkv_bias else ("weight",):
        names = (f"{attention}.q_proj.{kind}", f"{attention}.k_proj.{kind}", f"{attention}.v_proj.{kind}")
        rule = Attention(names, shape.num_heads, shape.num_groups, shape.head_dim)
        found[f"self_attention.linear_qkv.{kind}"] = rule
    if shape.has_qk_norm:
        found["self_attention.q_layernorm.weight"] = Same((f"{attention}.q_norm.weight",))
        found["self_attention.k_layernorm.weight"] = Same((f"{attention}.k_norm.weight",))
    return found
