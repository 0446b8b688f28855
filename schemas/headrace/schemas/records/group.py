"""GroupVerdict: what became of a group of rollouts, and why."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from headrace.schemas.records.base import Count, Identifier, Int32, Record, Timestamp
from headrace.schemas.records.rollout import Mode


class GroupVerdict(Record):
    """One for every group. The first in the log counts.

    Outcomes are those of its accepted rollouts, versions those of their trainable calls.
    """

    key_field: ClassVar[str] = "group_id"

    group_id: Identifier
    task_id: str = ""
    mode: Mode = "train"
    group_size: Annotated[Int32, Field(ge=1)] = 1
    num_rollouts: Count = 0
    """Finished ones, by distinct ids: below group_size where the deadline came first."""
    num_accepted: Count = 0
    status: Literal["batched", "excluded"]
    reason: str | None = None
    """Why it was excluded."""
    batch_id: Identifier | None = None
    policy_version_min: Count | None = None
    policy_version_max: Count | None = None
    staleness: Count | None = None
    """Versions between its oldest call and the newest that the log had shown when it was ready."""
    outcome_mean: FiniteFloat | None = None
    outcome_std: FiniteFloat | None = None
    """Of the population."""
    num_tokens: Count = 0
    """Of prompts and responses, each id that a call shares with the one before counted once."""
    source_partition: Annotated[Int32, Field(ge=0)]
    ready_offset: Count
    """In that partition of trajectories: of the record that completed the group, or closed it."""
    first_at: Timestamp
    """When its first trajectory was written to the log."""
    ready_at: Timestamp
    time: Timestamp
    """When the record was written that decided this: for a batch, the one that closed it."""

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.status == "batched") != (self.batch_id is not None):
            raise ValueError("a batch_id belongs to a batched group, and to no other")
        if self.status == "batched" and self.reason is not None:
            raise ValueError("a batched group has no reason")
        return self
