"""BatchAssembly: shards in the order of their log become batches, each given once. Pure.

The batcher makes the batches of a partition of trajectories in the order of their groups, and each shard
says how far in there its batch goes. One that does not go further than the last given is a repeat, however
long ago that was and whoever gave it: two numbers are all that a checkpoint must hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from headrace.schemas.records import BatchShard
from headrace.streams.client.batch import BadBatchError, Batch, make_batch

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Partial:
    """A batch of which some shards are there."""

    source: int
    last_offset: int
    num_shards: int
    partition: int
    first_offset: int
    """Where reading must begin again to have all of it."""
    shards: dict[int, BatchShard] = field(default_factory=dict)

    def group_ids(self) -> set[str]:
        return {trajectory.group_id for shard in self.shards.values() for trajectory in shard.trajectories}


class BatchAssembly:
    """Offsets are by `topic:partition`: of batches, what to read next; of trajectories, where the done ends.

    After a BadBatchError the same record may be given again: what was bad is left out then.
    """

    def __init__(self, batches: str, trajectories: str) -> None:
        self._topics = batches, trajectories
        self.positions: dict[int, int] = {}
        """The next record of each partition of batches."""
        self._starts: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._partial: dict[str, _Partial] = {}
        self.num_repeats = 0

    def reset(self, positions: Mapping[int, int], done: Mapping[int, int]) -> None:
        """Begin anew at these places."""
        self.positions, self._starts, self._done = dict(positions), dict(positions), dict(done)
        self._partial.clear()

    def parse(self, offsets: Mapping[str, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Positions in batches and in trajectories; BadBatchError for those of other topics."""
        found: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for place, offset in offsets.items():
            topic, _, partition = place.rpartition(":")
            if topic not in self._topics or not partition.isdecimal():
                raise BadBatchError(f"offsets of {place!r} are not those of {' and '.join(self._topics)}")
            found[self._topics.index(topic)][int(partition)] = offset
        return found

    @property
    def offsets(self) -> dict[str, int]:
        """Where reading goes on after the last batch given."""
        batches, trajectories = self._topics
        nexts = dict(self.positions)
        for partial in self._partial.values():
            nexts[partial.partition] = min(nexts[partial.partition], partial.first_offset)
        return {f"{batches}:{partition}": offset for partition, offset in sorted(nexts.items())} | {
            f"{trajectories}:{source}": offset for source, offset in sorted(self._done.items())
        }

    def incomplete(self) -> dict[str, tuple[int, int]]:
        """How many shards of how many are there, by batch id."""
        return {
            batch_id: (len(partial.shards), partial.num_shards) for batch_id, partial in self._partial.items()
        }

    def pass_by(self, partition: int, offset: int) -> None:
        """A record that is no shard. BadBatchError if records before it are gone."""
        expected = self.positions.get(partition, offset)
        if offset > expected:
            self.positions[partition] = offset
            raise BadBatchError(
                f"{self._topics[0]}:{partition} has lost the records from {expected} to {offset - 1} before "
                "they were read: its retention is too short. Seek with the offsets of trajectories alone to "
                "go on with what is left"
            )
        self.positions[partition] = offset + 1

    def take(self, partition: int, offset: int, shard: BatchShard) -> Batch | None:
        """The next record of a partition; the batch if that completes one that was not given before."""
        self.pass_by(partition, offset)
        if shard.last_offset < self._done.get(shard.source_partition, 0):
            self.num_repeats += 1
            return None
        partial = self._partial.setdefault(
            shard.batch_id,
            _Partial(shard.source_partition, shard.last_offset, shard.num_shards, partition, offset),
        )
        partial.shards.setdefault(shard.shard, shard)
        if len(partial.shards) < partial.num_shards:
            return None
        self._forget_older(partial)
        del self._partial[shard.batch_id]
        self._done[partial.source] = partial.last_offset + 1
        return make_batch([partial.shards[number] for number in sorted(partial.shards)], self.offsets)

    def _forget_older(self, given: _Partial) -> None:
        """Batches begun before this one and never completed: harmless only if their groups came again."""
        for batch_id, partial in list(self._partial.items()):
            is_older = partial.source == given.source and partial.last_offset <= given.last_offset
            if partial is given or not is_older:
                continue
            del self._partial[batch_id]
            was_cut = 0 not in partial.shards and partial.first_offset == self._starts[partial.partition]
            missing = sorted(set(range(partial.num_shards)) - set(partial.shards))
            if was_cut:
                log.warning("a batch begins before what the topic keeps", batch_id=batch_id, missing=missing)
            elif not partial.group_ids() & given.group_ids():
                raise BadBatchError(
                    f"batch {batch_id} lacks the shards {missing} of {partial.num_shards}: "
                    f"{self._topics[0]}:{partial.partition} has the others from {partial.first_offset} on"
                )
