"""Reward: a judgement on an attempt or on one of its calls."""

from typing import ClassVar, Literal, Self

from pydantic import FiniteFloat, model_validator

from headrace.schemas.records.base import Identifier, Record, SequenceId, Timestamp, UuidV7

OUTCOME = "outcome"
"""Name of the reward that judges the attempt as a whole."""


class Reward(Record):
    """Finite, always: NaN and infinity are refused here, at the edge (C17). No reward is not 0 (C1).

    Kind `closed` marks the place in this partition after which no reward of the attempt counts.
    """

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
    attempt_id: UuidV7
    sequence_id: SequenceId | None = None
    """None when it comes from outside the attempt."""
    kind: Literal["reward", "closed"] = "reward"
    reward_id: UuidV7
    name: Identifier = OUTCOME
    value: FiniteFloat
    about_sequence_id: SequenceId | None = None
    """The call it judges; None: the whole attempt."""
    source: str = ""
    time: Timestamp

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if self.kind == "closed" and self.sequence_id is not None:
            raise ValueError("a closing mark has no sequence_id")
        return self
