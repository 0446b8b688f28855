"""Assembler: the events of open attempts in, one trajectory for each finished attempt out.

State is the log's own records. What a batch brings of an open attempt is kept as one entry (a chunk), so
that no value grows and the changelog stays linear in the events. When the attempt is ready its verdict is
computed from the stored records alone, published, and the attempt is forgotten but for a mark that it is
finished, and who was the first to be this attempt of its rollout. Those outlive every possible redelivery
(`finished_retention_s`).

Time enters through the log (G4): when a deadline passes, `tick` writes closing marks into spans and
rewards, and the verdict follows from where those marks stand. Any number of marks is harmless: the first
counts.
"""

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import derived_uuid7, uuid7_time_ms
from headrace.schemas.records import AttemptEvent, DeadLetter, Record, Reward, Span, Trajectory
from headrace.schemas.topics import topic_name
from headrace.streams.client.publisher import MAX_RECORD_BYTES
from headrace.streams.processor import LogRecord, Output, State
from headrace.streams.processors.dead_letters import KEY_MISMATCH, dead_letter
from headrace.streams.processors.expiry import FinishedMarks
from headrace.streams.processors.lifecycle import DISPATCHER
from headrace.streams.processors.progress import Progress
from headrace.streams.processors.verdict import decide, without_transitions

Event = AttemptEvent | Span | Reward


_OPEN = b"o"
_CLAIM = b"c"
_ENTRY = struct.Struct(">QI")


class AssemblerSettings(BaseSettings):
    """How long the assembler waits, in seconds. Environment: `HEADRACE_ASSEMBLER_*`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_ASSEMBLER_", frozen=True, extra="forbid")

    straggler_grace_s: float = Field(default=10.0, ge=0)
    """After an attempt's end, for sequence ids that have not come yet."""
    orphan_after_s: float = Field(default=6 * 3600.0, gt=0)
    """Silence after which an attempt that has not ended is ended as unresponsive."""
    finished_retention_s: float = Field(default=8 * 24 * 3600.0, gt=0)
    """How long a finished attempt is known as such: longer than the topics keep its events."""


@dataclass(slots=True)
class _Waiting:
    """An attempt that a deadline may end. Times in ms; `since` is set by the first tick that sees it."""

    wait_ms: int
    ended: bool
    since: int | None = None


class Assembler:
    """A Processor over attempts, spans and rewards."""

    name = "assembler"

    def __init__(
        self, prefix: str, settings: AssemblerSettings | None = None, codec: Codec | None = None
    ) -> None:
        self.settings = settings or AssemblerSettings()
        self.codec = codec or Codec()
        self._names: dict[type[Record], str] = {
            record: topic_name(record, prefix)
            for record in (AttemptEvent, Span, Reward, Trajectory, DeadLetter)
        }
        self._types: dict[str, type[Event]] = {
            self._names[record]: record for record in (AttemptEvent, Span, Reward)
        }
        self._codes = {topic: bytes([index]) for index, topic in enumerate(self._types)}
        self.topics: Sequence[str] = tuple(self._types)
        self._open: dict[int, dict[str, Progress]] = defaultdict(dict)
        self._waiting: dict[int, dict[str, _Waiting]] = defaultdict(dict)
        self._finished = FinishedMarks(self.settings.finished_retention_s)
        self.counts: Counter[str] = Counter()
        """What became of the records and attempts, for metrics."""

    @property
    def num_open(self) -> int:
        """Attempts that are held."""
        return sum(len(attempts) for attempts in self._open.values())

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        outputs: list[Output] = []
        by_attempt: dict[str, list[tuple[LogRecord, Event]]] = defaultdict(list)
        for record in records:
            try:
                event = self._decode(record)
            except BadRecordError as error:
                outputs.append(self._dead_letter(record, error))
            else:
                if isinstance(event, AttemptEvent) and event.kind == "heartbeat":
                    self.counts["heartbeats"] += 1
                    self._touch(partition, event.attempt_id)
                else:
                    if isinstance(event, AttemptEvent):
                        # In the order of the log, which by attempt is lost.
                        self._stake(event, state)
                    by_attempt[event.attempt_id].append((record, event))
        for attempt_id, events in by_attempt.items():
            if self._finished.is_set(attempt_id.encode(), state):
                self.counts["late"] += len(events)
                continue
            trajectory = self._take(partition, attempt_id, events, state)
            if trajectory is not None:
                outputs.append(self._publish(trajectory))
        self.counts["forgotten"] += self._finished.sweep(partition, records, state)
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        outputs: list[Output] = []
        for partition, waiting in self._waiting.items():
            for attempt_id, wait in waiting.items():
                if wait.since is None:
                    wait.since = now_ms
                elif now_ms >= wait.since + wait.wait_ms:
                    # Again after as long, should these not come back.
                    wait.since = now_ms
                    outputs += self._pass_deadline(self._open[partition][attempt_id], wait.ended, now_ms)
        return outputs

    def assigned(self, partition: int, state: State) -> None:
        self.revoked(partition)
        for key, chunk in state.scan(_OPEN):
            attempt_id, topic = self._split_key(key)
            for offset, value in _entries(chunk):
                event = self.codec.decode(value, self._types[topic])
                progress = self._progress(partition, event)
                progress.is_new(topic, offset)
                self._add(progress, offset, event)
            self._touch(partition, attempt_id)

    def revoked(self, partition: int) -> None:
        self._open.pop(partition, None)
        self._waiting.pop(partition, None)
        self._finished.revoked(partition)

    def _decode(self, record: LogRecord) -> Event:
        event = self.codec.decode(record.value, self._types[record.topic])
        if record.key != event.key:
            raise BadRecordError(f"the key is not rollout {event.rollout_id}", reason=KEY_MISMATCH)
        return event

    def _take(
        self, partition: int, attempt_id: str, events: list[tuple[LogRecord, Event]], state: State
    ) -> Trajectory | None:
        """Add the events; the trajectory if that makes the attempt ready."""
        progress = self._progress(partition, events[0][1])
        fresh = [(record, event) for record, event in events if progress.is_new(record.topic, record.offset)]
        for record, event in fresh:
            self._add(progress, record.offset, event)
        if not progress.is_ready():
            for key, chunk in self._chunks(attempt_id, fresh):
                state.put(key, chunk)
            self._touch(partition, attempt_id)
            return None
        trajectory = self._decide(progress, attempt_id, fresh, state)
        finished_ms = max(record.timestamp_ms for record, _ in events)
        claim = _claim(progress)
        also = claim if claim and state.get(claim) == attempt_id.encode() else b""
        self._finished.set(attempt_id.encode(), finished_ms, state, also=also)
        del self._open[partition][attempt_id]
        self._waiting[partition].pop(attempt_id, None)
        return trajectory

    def _stake(self, event: AttemptEvent, state: State) -> None:
        """Keep who was first in the log to be this attempt of its rollout: one task may reach two runners.

        The dispatcher's own end claims it as well: who starts a cancelled attempt comes too late.
        """
        if not (event.origin.dispatched if event.origin else event.runner_id == DISPATCHER):
            return
        key, attempt_id = _claim_key(event.rollout_id, event.attempt), event.attempt_id.encode()
        if state.get(key) is None and not self._finished.is_set(attempt_id, state):
            state.put(key, attempt_id)

    def _decide(
        self, progress: Progress, attempt_id: str, events: list[tuple[LogRecord, Event]], state: State
    ) -> Trajectory:
        """Collect the attempt's records from the state and this batch, decide, and forget them."""
        spans: dict[int, Span] = {}
        rewards: dict[int, Reward] = {}

        def keep(offset: int, event: Event) -> None:
            if isinstance(event, Span):
                spans[offset] = event
            elif isinstance(event, Reward):
                rewards[offset] = event

        stored = list(state.scan(_OPEN + attempt_id.encode()))
        for key, chunk in stored:
            _, topic = self._split_key(key)
            for offset, value in _entries(chunk):
                keep(offset, self.codec.decode(value, self._types[topic]))
            state.delete(key)
        for record, event in events:
            keep(record.offset, event)
        claim = _claim(progress)
        owner = state.get(claim) if claim else None
        return decide(progress, spans, rewards, superseded=owner is not None and owner != attempt_id.encode())

    def _publish(self, trajectory: Trajectory) -> Output:
        topic = self._names[Trajectory]
        value = self.codec.encode(trajectory, topic)
        if len(value) > MAX_RECORD_BYTES:
            trajectory = without_transitions(trajectory)
            value = self.codec.encode(trajectory, topic)
        self.counts[f"attempts.{trajectory.reason or 'accepted'}"] += 1
        return Output(topic, trajectory.key, value)

    def _dead_letter(self, record: LogRecord, error: BadRecordError) -> Output:
        self.counts["dead_letters"] += 1
        letter = dead_letter(self.name, record, error.reason, str(error))
        topic = self._names[DeadLetter]
        return Output(topic, letter.key, self.codec.encode(letter, topic))

    def _pass_deadline(self, progress: Progress, ended: bool, now_ms: int) -> list[Output]:  # noqa: FBT001
        """The events that say that time is up: closing marks, or an end for an attempt that has none."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        rollout_id, attempt_id = progress.rollout_id, progress.attempt_id
        events: list[Event]
        if ended:
            self.counts["closed"] += 1
            span_id = f"closed-{attempt_id}"
            events = [
                Span(
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                    kind="closed",
                    span_id=span_id,
                    start_time=now,
                    end_time=now,
                ),
                Reward(
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                    kind="closed",
                    reward_id=derived_uuid7(uuid7_time_ms(attempt_id), attempt_id, "closed"),
                    value=0.0,
                    source=self.name,
                    time=now,
                ),
            ]
        else:
            self.counts["orphans"] += 1
            error = f"no event for {self.settings.orphan_after_s:g} s"
            events = [
                AttemptEvent(
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                    attempt=progress.started[1].attempt if progress.started else 1,
                    kind="ended",
                    status="unresponsive",
                    runner_id=self.name,
                    error=error,
                    time=now,
                )
            ]
        return [self._output(event) for event in events]

    def _output(self, event: Event) -> Output:
        topic = self._names[type(event)]
        return Output(topic, event.key, self.codec.encode(event, topic))

    def _progress(self, partition: int, event: Event) -> Progress:
        attempts = self._open[partition]
        progress = attempts.get(event.attempt_id)
        if progress is None:
            progress = attempts[event.attempt_id] = Progress(event.rollout_id, event.attempt_id)
        return progress

    def _add(self, progress: Progress, offset: int, event: Event) -> None:
        if isinstance(event, Span):
            progress.add_span(offset, event)
        elif isinstance(event, Reward):
            progress.add_reward(offset, event)
        else:
            progress.add_event(offset, event)

    def _touch(self, partition: int, attempt_id: str) -> None:
        """Start or restart the clock of an open attempt."""
        progress = self._open[partition].get(attempt_id)
        if progress is None:
            return
        ended = progress.ended is not None
        wait_s = self.settings.orphan_after_s
        if ended:
            wait_s = self.settings.straggler_grace_s
            if progress.origin and progress.expects_outcome:
                grace_s = progress.origin.reward_grace_s
                wait_s = grace_s if progress.is_complete() else max(wait_s, grace_s)
        known = self._waiting[partition].get(attempt_id)
        if known is not None and known.ended and ended:
            known.wait_ms = int(wait_s * 1000)  # what comes after the end does not postpone the deadline
        else:
            self._waiting[partition][attempt_id] = _Waiting(int(wait_s * 1000), ended)

    def _chunks(
        self, attempt_id: str, events: list[tuple[LogRecord, Event]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The attempt's new records of one batch as one entry a topic.

        Each offset stands in one chunk only, so that the first one names it, in whatever batches the log
        comes after a restart.
        """
        by_topic: dict[str, list[LogRecord]] = defaultdict(list)
        for record, _ in events:
            by_topic[record.topic].append(record)
        for topic, group in by_topic.items():
            key = _OPEN + attempt_id.encode() + self._codes[topic] + group[0].offset.to_bytes(8, "big")
            yield (
                key,
                b"".join(
                    part
                    for record in group
                    for part in (_ENTRY.pack(record.offset, len(record.value or b"")), record.value or b"")
                ),
            )

    def _split_key(self, key: bytes) -> tuple[str, str]:
        """Attempt id and topic of an open entry."""
        return key[1:37].decode(), self.topics[key[37]]


def _claim(progress: Progress) -> bytes | None:
    """The key of the claim that this attempt must hold, if it is one that the dispatcher asked for."""
    first = progress.started or progress.ended
    if first is None:
        return None
    event = first[1]
    is_dispatched = event.origin.dispatched if event.origin else event.runner_id == DISPATCHER
    return _claim_key(event.rollout_id, event.attempt) if is_dispatched else None


def _claim_key(rollout_id: str, attempt: int) -> bytes:
    return _CLAIM + rollout_id.encode() + attempt.to_bytes(4, "big")


def _entries(chunk: bytes) -> Iterator[tuple[int, bytes]]:
    """Offsets and values of a chunk."""
    at = 0
    while at < len(chunk):
        offset, size = _ENTRY.unpack_from(chunk, at)
        at += _ENTRY.size
        yield offset, chunk[at : at + size]
        at += size
