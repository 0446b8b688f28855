"""Batcher: trajectories in; batches of groups that may train, and each group's fate, out.

A fold over one partition of trajectories: what it has handled, in the order of offsets, decides everything,
so that redelivery, restarts and replays give the same batches, byte for byte (G4, G5). A group is ready when
each of its rollouts has ended, or when a mark in the log says that its time is up (C14); ready groups fill a
batch in that order, and a mark closes one that does not fill.

The newest version of a policy is the newest that trajectories have shown so far: a place in the log, and not
a clock, decides what is stale (C15).
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import BatchShard, DeadLetter, GroupVerdict, Record, Trajectory
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord, Output, State
from headrace.streams.processors.batcher.group import DEADLINE, Group, Member, seen_versions
from headrace.streams.processors.batcher.settings import BatcherSettings
from headrace.streams.processors.batcher.settled import Settled
from headrace.streams.processors.batcher.shards import Sized, make_shards
from headrace.streams.processors.batcher.store import GroupStore
from headrace.streams.processors.dead_letters import KEY_MISMATCH, dead_letter

BATCH_WAIT = "batch_wait"
"""The reason on a mark that closes a batch; DEADLINE is on one that closes a group."""
MARKED = "none@1"
"""What stands on a mark for a credit rule."""

_BATCH_PARTITION = 0
"""Of all shards: what tells repeats is the order of batches."""
_MARK_AGAIN_MS = 30_000
_LAST_MS = 253_402_300_799_000
"""The end of the year 9999, where datetime ends."""


@dataclass(slots=True)
class _Partition:
    cursor: int = -1
    newest: dict[str, int] = field(default_factory=dict)
    """Versions, by resource."""
    open: dict[str, Group] = field(default_factory=dict)
    pending: dict[str, Group] = field(default_factory=dict)
    """In the batch that is being filled, in the order of readiness."""
    settled: Settled = field(default_factory=Settled)
    """Since the last batch."""
    leftovers: list[bytes] = field(default_factory=list)
    marked_ms: dict[str, int] = field(default_factory=dict)
    """When a group's mark was written: should it not come back, it is written again."""


class Batcher:
    """A Processor over trajectories."""

    name = "batcher"

    def __init__(
        self, prefix: str, settings: BatcherSettings | None = None, codec: Codec | None = None
    ) -> None:
        self.settings = settings or BatcherSettings()
        self.codec = codec or Codec()
        self._names: dict[type[Record], str] = {
            record: topic_name(record, prefix)
            for record in (Trajectory, BatchShard, GroupVerdict, DeadLetter)
        }
        self.topics: Sequence[str] = (self._names[Trajectory],)
        self._store = GroupStore(self.codec, self.settings.finished_retention_s)
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self.counts: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Groups that are held, those in an unfinished batch included."""
        return sum(len(part.open) + len(part.pending) for part in self._partitions.values())

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        # All are decoded before anything changes, so that a registry that is away changes nothing.
        decoded = [(record, self._decode(record)) for record in records]
        part = self._partitions[partition]
        if records and records[0].offset > part.cursor + 1:
            # What is before was committed, so it was handled. The cursor is behind it where a process that
            # was frozen woke and wrote its old one after another had taken over.
            part = self._recover(partition, state, at_least=records[0].offset - 1)
        for key in part.leftovers:
            state.delete(key)
        part.leftovers.clear()
        outputs: list[Output] = []
        for record, event in decoded:
            if record.offset <= part.cursor:
                self.counts["repeated"] += 1
                continue
            if isinstance(event, DeadLetter):
                outputs.append(self._output(event))
            elif event.kind == "closed":
                outputs += self._on_mark(part, record, event, state)
            else:
                outputs += self._on_trajectory(part, record, event, state)
            part.cursor = record.offset
        self._store.put_cursor(part.cursor, part.newest, state)
        self.counts["forgotten"] += self._store.finished.sweep(partition, records, state)
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        deadline_ms = int(self.settings.group_deadline_s * 1000)
        wait_ms = int(self.settings.batch_wait_s * 1000)
        outputs: list[Output] = []
        for partition, part in self._partitions.items():
            due = [
                (group, DEADLINE) for group in part.open.values() if now_ms >= group.first_ms + deadline_ms
            ]
            oldest = next(iter(part.pending.values()), None)
            if oldest is not None and now_ms >= oldest.ready_ms + wait_ms:
                due.append((oldest, BATCH_WAIT))
            for group, reason in due:
                if now_ms >= part.marked_ms.get(group.group_id, now_ms - _MARK_AGAIN_MS) + _MARK_AGAIN_MS:
                    part.marked_ms[group.group_id] = now_ms
                    self.counts[f"marks.{reason}"] += 1
                    # Where the group's trajectories are, whatever partition its key would choose.
                    output = self._output(make_mark(group, reason, now_ms))
                    outputs.append(output._replace(partition=partition))
        return outputs

    def assigned(self, partition: int, state: State) -> None:
        self.revoked(partition)
        self._recover(partition, state)

    def revoked(self, partition: int) -> None:
        self._partitions.pop(partition, None)
        self._store.finished.revoked(partition)

    def _recover(self, partition: int, state: State, *, at_least: int = -1) -> _Partition:
        part = self._partitions[partition] = _Partition(*self._store.recover(state, at_least=at_least))
        return part

    # --- groups --------------------------------------------------------------------------------------

    def _on_trajectory(
        self, part: _Partition, record: LogRecord, trajectory: Trajectory, state: State
    ) -> Iterator[Output]:
        for name, versions in seen_versions(trajectory).items():
            part.newest[name] = max(*versions, part.newest.get(name, 0))
        group_id = trajectory.group_id
        if group_id in part.pending or self._store.is_finished(group_id, record.offset, state):
            # It is in ClickHouse, and its group has gone without it.
            self.counts["late"] += 1
            return
        group = part.open.get(group_id)
        if group is None:
            group = part.open[group_id] = Group(
                group_id,
                trajectory.task_id,
                trajectory.mode,
                trajectory.group_size,
                record.offset,
                record.timestamp_ms,
            )
            self._store.put_head(group, state)
        if not trajectory.is_final:
            self.counts["tried_again"] += 1
            return
        member = Member.of(trajectory, record.offset)
        if not group.add(member):
            self.counts["duplicates"] += 1
            return
        self._store.put_member(group, member, record.value or b"", state)
        if group.is_whole:
            yield from self._settle(part, record, group, state)

    def _on_mark(
        self, part: _Partition, record: LogRecord, mark: Trajectory, state: State
    ) -> Iterator[Output]:
        """What the log says of time; a mark for a group that is not there any more changes nothing."""
        group = part.open.get(mark.group_id)
        if mark.reason == DEADLINE and group is not None:
            yield from self._settle(part, record, group, state)
        elif mark.reason == BATCH_WAIT and mark.group_id in part.pending:
            yield from self._close_batch(part, record, state)
        else:
            self.counts["late_marks"] += 1

    def _settle(self, part: _Partition, record: LogRecord, group: Group, state: State) -> Iterator[Output]:
        """The group is ready: it joins the batch that is being filled, or is excluded."""
        del part.open[group.group_id]
        part.marked_ms.pop(group.group_id, None)
        group.ready_offset, group.ready_ms = record.offset, record.timestamp_ms
        group.staleness = group.staleness_at(part.newest)
        reason = group.why_excluded(self.settings)
        if reason is not None:
            self._keep_settled(part, part.settled.plus(group, record.offset), state)
            yield self._verdict(record, group, reason=reason)
            self._store.finish(group, record.offset, record.timestamp_ms, state)
            return
        num_tokens = sum(other.num_tokens for other in part.pending.values())
        if part.pending and num_tokens + group.num_tokens > self.settings.batch_tokens:
            yield from self._close_batch(part, record, state)
            num_tokens = 0
        self._keep_settled(part, part.settled.plus(group, record.offset), state)
        part.pending[group.group_id] = group
        self._store.put_pending(group, state)
        is_full = num_tokens + group.num_tokens >= self.settings.batch_tokens
        if is_full or len(part.pending) >= self.settings.batch_groups:
            yield from self._close_batch(part, record, state)

    def _close_batch(self, part: _Partition, record: LogRecord, state: State) -> Iterator[Output]:
        """Everything that is pending, as one batch."""
        groups = list(part.pending.values())
        found = [versions for group in groups if (versions := group.policy_versions())]
        shards = make_shards(
            [Sized(*sized) for group in groups for sized in self._store.records(group, state)],
            versions=(min(low for low, _ in found), max(high for _, high in found)) if found else None,
            source_partition=record.partition,
            last_offset=max(group.ready_offset for group in groups),
            settled=part.settled,
            time=_time(record.timestamp_ms),
        )
        self._keep_settled(part, Settled(record.offset), state)
        self.counts["batches"] += 1
        for shard in shards:
            yield self._output(shard)._replace(partition=_BATCH_PARTITION)
        for group in groups:
            yield self._verdict(record, group, batch_id=shards[0].batch_id)
            self._store.finish(group, record.offset, record.timestamp_ms, state)
            part.marked_ms.pop(group.group_id, None)
        part.pending.clear()

    def _keep_settled(self, part: _Partition, settled: Settled, state: State) -> None:
        if settled != part.settled:
            self._store.put_settled(part.settled, settled, state)
            part.settled = settled

    # --- records -------------------------------------------------------------------------------------

    def _verdict(
        self, record: LogRecord, group: Group, *, reason: str | None = None, batch_id: str | None = None
    ) -> Output:
        self.counts[f"groups.{reason or 'batched'}"] += 1
        versions, outcomes = group.policy_versions(), group.outcome_statistics()
        return self._output(
            GroupVerdict(
                group_id=group.group_id,
                task_id=group.task_id,
                mode=group.mode,
                group_size=group.size,
                num_rollouts=len(group.members),
                num_accepted=len(group.accepted),
                status="batched" if reason is None else "excluded",
                reason=reason,
                batch_id=batch_id,
                policy_version_min=versions[0] if versions else None,
                policy_version_max=versions[1] if versions else None,
                staleness=group.staleness,
                outcome_mean=outcomes[0] if outcomes else None,
                outcome_std=outcomes[1] if outcomes else None,
                num_tokens=group.num_tokens,
                source_partition=record.partition,
                ready_offset=group.ready_offset,
                first_at=_time(group.first_ms),
                ready_at=_time(group.ready_ms),
                time=_time(record.timestamp_ms),
            )
        )

    def _decode(self, record: LogRecord) -> Trajectory | DeadLetter:
        try:
            trajectory = self.codec.decode(record.value, Trajectory)
        except BadRecordError as error:
            return self._bad(record, error)
        if record.key != trajectory.key:
            return self._bad(
                record, BadRecordError("the key is not the trajectory's group", reason=KEY_MISMATCH)
            )
        return trajectory

    def _bad(self, record: LogRecord, error: BadRecordError) -> DeadLetter:
        self.counts["dead_letters"] += 1
        return dead_letter(self.name, record, error.reason, str(error))

    def _output(self, record: Record) -> Output:
        topic = self._names[type(record)]
        return Output(topic, record.key, self.codec.encode(record, topic))


def make_mark(group: Group, reason: str, now_ms: int) -> Trajectory:
    """That a group's time is up, for its partition of trajectories."""
    return Trajectory(
        kind="closed",
        rollout_id=derived_uuid7(0, group.group_id, reason),
        attempt_id=derived_uuid7(0, group.group_id, reason, "mark"),
        is_final=False,
        group_id=group.group_id,
        group_size=group.size,
        task_id=group.task_id,
        mode=group.mode,
        status="timeout",
        accepted=False,
        reason=reason,
        credit_rule=MARKED,
        ended_at=_time(now_ms),
    )


def _time(ms: int) -> datetime:
    """Whatever a producer took for the time: one that can't be is the nearest that can."""
    return datetime.fromtimestamp(min(max(ms, 0), _LAST_MS) / 1000, UTC)
