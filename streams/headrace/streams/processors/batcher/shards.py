"""Shards: a batch as records of at most 8 MiB, the same for the same trajectories. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from headrace.schemas.digest import content_digest
from headrace.schemas.records import BatchShard, Trajectory
from headrace.streams.client.publisher import MAX_RECORD_BYTES
from headrace.streams.processors.batcher.settled import Settled

BATCH_ID_CHARS = 32
_ROOM_BYTES = MAX_RECORD_BYTES - 256 * 1024
"""For what is around trajectories, and the fields that a newer schema adds to old records.
A trajectory that is larger is alone in its shard: the topic takes what the trajectories' topic took."""


class Sized(NamedTuple):
    """A trajectory, and how many bytes it takes encoded."""

    trajectory: Trajectory
    num_bytes: int


def make_shards(
    members: Sequence[Sized],
    *,
    versions: tuple[int, int] | None,
    source_partition: int,
    last_offset: int,
    settled: Settled,
    time: datetime,
) -> list[BatchShard]:
    """Ordered by group and rollout, whatever order they come in."""
    ordered = sorted(members, key=lambda member: (member.trajectory.group_id, member.trajectory.rollout_id))
    manifest_hash = content_digest(member.trajectory for member in ordered)
    parts = list(_split(ordered))
    return [
        BatchShard(
            batch_id=manifest_hash[:BATCH_ID_CHARS],
            shard=number,
            num_shards=len(parts),
            manifest_hash=manifest_hash,
            policy_version_min=versions[0] if versions else None,
            policy_version_max=versions[1] if versions else None,
            source_partition=source_partition,
            last_offset=last_offset,
            settled_outcome_sum=settled.outcome_sum,
            settled_num_outcomes=settled.num_outcomes,
            trajectories=tuple(member.trajectory for member in part),
            time=time,
        )
        for number, part in enumerate(parts)
    ]


def _split(members: Sequence[Sized]) -> Iterator[list[Sized]]:
    part: list[Sized] = []
    size = 0
    for member in members:
        if part and size + member.num_bytes > _ROOM_BYTES:
            yield part
            part, size = [], 0
        part.append(member)
        size += member.num_bytes
    if part:
        yield part
