"""Batch: what a trainer is given at a time, put together from its shards and verified. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from headrace.schemas.digest import content_digest
from headrace.schemas.errors import FatalError
from headrace.schemas.records import BatchShard, Trajectory


class BadBatchError(FatalError):
    """A batch that can't be trained on as it stands in the log, or offsets that are not of this log."""


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Rollouts of one task, sampled together."""

    group_id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    """Accepted ones, the last of each rollout, ordered by rollout."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups to train on together."""

    batch_id: str
    manifest_hash: str
    groups: tuple[BatchGroup, ...]
    """Ordered by id."""
    policy_version_min: int | None
    """The oldest weights that any of its trainable calls came from."""
    policy_version_max: int | None
    time: datetime
    settled_outcome_sum: float = 0.0
    """Over accepted rollouts of all groups for training that were settled since the batch before, those
    included that are in no batch since all did alike: how well the policy does by now."""
    settled_num_outcomes: int = 0
    """0 from a batcher that does not say."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Where reading goes on after it: for a checkpoint, and for `BatchConsumer.seek`. JSON-able."""

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(trajectory for group in self.groups for trajectory in group.trajectories)

    @property
    def num_tokens(self) -> int:
        """Of prompts and responses, each id that a call shares with the one before counted once."""
        return sum(
            len(transition.prompt_suffix_token_ids) + len(transition.response_token_ids)
            for trajectory in self.trajectories
            for transition in trajectory.transitions
        )


def make_batch(shards: Sequence[BatchShard], offsets: Mapping[str, int]) -> Batch:
    """From all shards in their order. BadBatchError if they are not what the batcher hashed."""
    first = shards[0]
    trajectories = [trajectory for shard in shards for trajectory in shard.trajectories]
    found = content_digest(trajectories)
    if found != first.manifest_hash or not found.startswith(first.batch_id):
        raise BadBatchError(
            f"batch {first.batch_id}: its {len(trajectories)} trajectories have the hash {found[:16]}…, "
            f"and not {first.manifest_hash[:16]}…"
        )
    return Batch(
        batch_id=first.batch_id,
        manifest_hash=first.manifest_hash,
        groups=tuple(_groups(trajectories)),
        policy_version_min=first.policy_version_min,
        policy_version_max=first.policy_version_max,
        time=first.time,
        settled_outcome_sum=first.settled_outcome_sum,
        settled_num_outcomes=first.settled_num_outcomes,
        offsets=dict(offsets),
    )


def _groups(trajectories: Sequence[Trajectory]) -> Iterator[BatchGroup]:
    for group_id, members in groupby(trajectories, key=lambda trajectory: trajectory.group_id):
        found = tuple(members)
        yield BatchGroup(group_id, found[0].task_id, found)
