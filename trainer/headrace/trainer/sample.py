"""Sample: a sequence to train on, and MicroBatch: several of them, padded to one shape.

Shape legend: B samples, S positions. Index t of every per-token tensor speaks of token t of the sequence,
which the model predicts from the tokens before it; nothing is said at t = 0.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence: the calls of an attempt whose prompts extend each other id for id, merged (C7).

    All tuples have the sequence's length.
    """

    rollout_id: str
    group_id: str
    token_ids: tuple[int, ...]
    is_action: tuple[bool, ...]
    """The policy drew this token, and it is trained on."""
    behaviour_logprobs: tuple[float, ...]
    """As the engine gave them; 0 where there is no action."""
    rewards: tuple[float, ...]
    """The credited reward of the call that an action belongs to; 0 elsewhere."""
    min_version: int | None = None
    """The oldest weights that any of its actions came from."""

    @property
    def num_actions(self) -> int:
        return sum(self.is_action)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """A sample with what the algorithm makes of it, per token of the sequence."""

    sample: Sample
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    """What the token's loss counts in the whole batch's sum, normalization included; 0: not at all."""


class MicroBatch(NamedTuple):
    """On one device. A batch's loss is the sum over all its micro-batches, on all data-parallel ranks."""

    token_ids_BS: torch.Tensor
    """int64; padded on the right."""
    weights_BS: torch.Tensor
    """float32; 0 on padding, prompts and position 0."""
    advantages_BS: torch.Tensor
    """float32."""
    behaviour_logprobs_BS: torch.Tensor
    """float32."""
    old_logprobs_BS: torch.Tensor
    """float32: the trained model's before the first step on this batch, or the behaviour's."""
    reference_logprobs_BS: torch.Tensor | None = None
    """float32, of the reference model of the KL term."""


@dataclass(slots=True)
class LossOutput:
    """What a loss makes of a micro-batch."""

    loss: torch.Tensor
    """Scalar, to be summed over micro-batches and ranks."""
    sums: dict[str, torch.Tensor] = field(default_factory=dict)
    """Detached scalars for metrics, summed likewise; `num_actions` among them, to take means by."""
    maxima: dict[str, torch.Tensor] = field(default_factory=dict)
    """Detached scalars of which the largest counts."""
