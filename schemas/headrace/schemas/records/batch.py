"""BatchShard: a part of a finalized training batch."""

from typing import Annotated, ClassVar

from pydantic import Field, FiniteFloat

from headrace.schemas.records.base import Count, Identifier, Int32, Record, Timestamp
from headrace.schemas.records.trajectory import Trajectory


class BatchShard(Record):
    """The same trajectories always give the same batch_id: it is a hash of the content.

    `last_offset` rises from batch to batch of a source partition: one that does not is a repeat.
    """

    key_field: ClassVar[str] = "batch_id"

    batch_id: Identifier
    shard: Annotated[Int32, Field(ge=0)]
    num_shards: Annotated[Int32, Field(ge=1)]
    manifest_hash: str
    policy_version_min: Count | None = None
    policy_version_max: Count | None = None
    source_partition: Annotated[Int32, Field(ge=0)]
    """Of trajectories, whose groups these are."""
    last_offset: Count
    """In there, of the record that made the batch's newest group ready."""
    settled_outcome_sum: FiniteFloat = 0.0
    """Over accepted rollouts of all groups for training that were settled on that partition since the batch
    before, in this batch or in none: how well the policy does, even where groups that all do are left out."""
    settled_num_outcomes: Count = 0
    trajectories: tuple[Trajectory, ...]
    time: Timestamp
