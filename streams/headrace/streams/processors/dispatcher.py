"""Dispatcher: commands and the events of attempts in; tasks for runners and states of rollouts out.

The attempts log decides everything (G4, G7). A command to cancel and a deadline that passes only lead to an
event there, and the rollout's life follows from the order of events in its one partition. Of two runners that
met one task, the first in the log is the attempt. Finished rollouts are forgotten but for a mark.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import orjson
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.ids import derived_uuid7, uuid7_time_ms
from headrace.schemas.records import (
    AttemptEvent,
    AttemptOrigin,
    AttemptTask,
    DeadLetter,
    Record,
    RolloutCommand,
    RolloutState,
)
from headrace.schemas.records.rollout import AttemptOutcome, RolloutStateName
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord, Output, State
from headrace.streams.processors.dead_letters import KEY_MISMATCH, dead_letter
from headrace.streams.processors.expiry import FinishedMarks
from headrace.streams.processors.lifecycle import (
    DISPATCHER,
    FINAL,
    ROLLOUT,
    attempt_step,
    ended_as,
    rollout_step,
)

_ROLLOUT = b"r"
_HELD = b"h"


class DispatcherSettings(BaseSettings):
    """Environment: `HEADRACE_DISPATCHER_*`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_DISPATCHER_", frozen=True, extra="forbid")

    deadline_slack_s: float = Field(default=2.0, ge=0)
    """A runner ends its own attempts at their deadline; the dispatcher does so this much later."""
    finished_retention_s: float = Field(default=8 * 24 * 3600.0, gt=0)
    """How long a finished rollout is known as such: longer than the topics keep its events."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout that is not finished."""

    command: RolloutCommand
    state: RolloutStateName = "queuing"
    attempt: int = 1
    attempt_id: str | None = None
    """Who was first in the log to be this attempt."""
    revision: int = 0
    started_ms: int = 0

    def to_bytes(self, codec: Codec) -> bytes:
        head = orjson.dumps([self.state, self.attempt, self.attempt_id, self.revision, self.started_ms])
        return len(head).to_bytes(2, "big") + head + codec.encode(self.command, "")

    @classmethod
    def from_bytes(cls, value: bytes, codec: Codec) -> "Rollout":
        size = int.from_bytes(value[:2], "big")
        return cls(codec.decode(value[2 + size :], RolloutCommand), *orjson.loads(value[2 : 2 + size]))


@dataclass(slots=True)
class _Watch:
    """Deadlines of a running attempt, in ms. `seen_ms` is set by the first tick after a sign of life."""

    rollout_id: str
    attempt_id: str
    attempt: int
    origin: AttemptOrigin
    ends_ms: int
    silence_ms: int
    seen_ms: int | None = None


class Dispatcher:
    """A Processor over rollouts and attempts."""

    name = DISPATCHER

    def __init__(
        self, prefix: str, settings: DispatcherSettings | None = None, codec: Codec | None = None
    ) -> None:
        self.settings = settings or DispatcherSettings()
        self.codec = codec or Codec()
        self._names: dict[type[Record], str] = {
            record: topic_name(record, prefix)
            for record in (RolloutCommand, AttemptEvent, AttemptTask, RolloutState, DeadLetter)
        }
        self._types: dict[str, type[RolloutCommand | AttemptEvent]] = {
            self._names[RolloutCommand]: RolloutCommand,
            self._names[AttemptEvent]: AttemptEvent,
        }
        self.topics: Sequence[str] = tuple(self._types)
        self._finished = FinishedMarks(self.settings.finished_retention_s)
        self._watches: dict[int, dict[str, _Watch]] = defaultdict(dict)
        self.counts: Counter[str] = Counter()

    @property
    def num_watched(self) -> int:
        """Attempts whose deadlines are kept."""
        return sum(len(watches) for watches in self._watches.values())

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        # All are decoded before anything changes, so that a registry that is away changes nothing.
        decoded = [(record, self._decode(record)) for record in records]
        outputs: list[Output] = []
        for record, event in decoded:
            if isinstance(event, DeadLetter):
                outputs.append(self._output(event))
            elif isinstance(event, RolloutCommand):
                outputs += self._on_command(partition, record, event, state)
            else:
                outputs += self._on_event(partition, record, event, state)
        self.counts["forgotten"] += self._finished.sweep(partition, records, state)
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        outputs: list[Output] = []
        for watches in self._watches.values():
            for watch in watches.values():
                if watch.seen_ms is None:
                    watch.seen_ms = now_ms
                if now_ms >= watch.ends_ms:
                    status: AttemptOutcome = "timeout"
                    error = "the attempt did not end by its deadline"
                elif now_ms >= watch.seen_ms + watch.silence_ms:
                    status, error = "unresponsive", f"no heartbeat for {watch.silence_ms / 1000:g} s"
                else:
                    continue
                # Again after as long, should this one not come back.
                watch.seen_ms = now_ms
                watch.ends_ms = max(watch.ends_ms, now_ms + watch.silence_ms)
                outputs.append(self._end(watch, status, error, datetime.fromtimestamp(now_ms / 1000, UTC)))
                self.counts[status] += 1
        return outputs

    def assigned(self, partition: int, state: State) -> None:
        self.revoked(partition)
        for _, value in state.scan(_ROLLOUT):
            self._watch(partition, Rollout.from_bytes(value, self.codec))

    def revoked(self, partition: int) -> None:
        self._watches.pop(partition, None)
        self._finished.revoked(partition)

    # --- commands ------------------------------------------------------------------------------------

    def _on_command(
        self, partition: int, record: LogRecord, command: RolloutCommand, state: State
    ) -> Iterator[Output]:
        rollout_id = command.rollout_id.encode()
        if self._finished.is_set(rollout_id, state):
            self.counts["late_commands"] += 1
            return
        rollout = self._load(rollout_id, state)
        if command.kind == "cancel":
            if rollout is not None:
                yield self._cancel(rollout, command.time)
            return
        if rollout is not None:
            self.counts["repeated_commands"] += 1
            return
        rollout = self._enter(Rollout(command), state, "queuing")
        yield self._say(rollout, command.time)
        yield self._task(rollout, command.time)
        self.counts["enqueued"] += 1
        # Attempts were read ahead of this command: on a replay, nothing orders two topics.
        held = list(state.scan(_HELD + rollout_id))
        for key, value in held:
            state.delete(key)
            event = self.codec.decode(value, AttemptEvent)
            yield from self._on_event(partition, record._replace(value=value), event, state)

    def _cancel(self, rollout: Rollout, time: datetime) -> Output:
        """Ask the log to end the present attempt, or, where none has started, to count one as ended."""
        rollout_id = rollout.command.rollout_id
        attempt_id = rollout.attempt_id or derived_uuid7(
            uuid7_time_ms(rollout_id), rollout_id, "cancelled", str(rollout.attempt)
        )
        self.counts["cancels"] += 1
        watch = _Watch(rollout_id, attempt_id, rollout.attempt, AttemptOrigin.of(rollout.command), 0, 0)
        return self._end(watch, "cancelled", "cancelled", time)

    # --- events --------------------------------------------------------------------------------------

    def _on_event(
        self, partition: int, record: LogRecord, event: AttemptEvent, state: State
    ) -> Iterator[Output]:
        rollout_id = event.rollout_id.encode()
        rollout = self._load(rollout_id, state)
        if rollout is None:
            self._hold_if_ahead(record, event, state)
            return
        if event.attempt == rollout.attempt and rollout.attempt_id in {None, event.attempt_id}:
            yield from self._advance(partition, record, rollout, event, state)
        elif event.kind == "ended" and event.status == "cancelled" and event.runner_id == DISPATCHER:
            # The attempt that was to be cancelled had ended before; what follows it is cancelled instead.
            yield self._cancel(rollout, event.time)
        else:
            self.counts["superseded"] += 1

    def _hold_if_ahead(self, record: LogRecord, event: AttemptEvent, state: State) -> None:
        """Keep the events of a rollout whose command is not read yet; others are not the dispatcher's."""
        rollout_id = event.rollout_id.encode()
        if self._finished.is_set(rollout_id, state):
            self.counts["late"] += 1
            return
        prefix = _HELD + rollout_id
        is_ours = event.origin.dispatched if event.origin else event.runner_id == DISPATCHER
        if event.kind != "heartbeat" and (is_ours or next(state.scan(prefix), None) is not None):
            state.put(prefix + record.offset.to_bytes(8, "big"), record.value or b"")

    def _advance(
        self, partition: int, record: LogRecord, rollout: Rollout, event: AttemptEvent, state: State
    ) -> Iterator[Output]:
        """An event of the rollout's present attempt, or one that makes itself so."""
        step = rollout_step(attempt_step(event), rollout.attempt, rollout.command.config)
        self._see(partition, event.rollout_id)
        new_state = ROLLOUT.get((rollout.state, step))
        if new_state is None:
            self.counts["ignored"] += event.kind != "heartbeat"
            return
        started_ms = record.timestamp_ms if event.kind == "started" else rollout.started_ms
        rollout = replace(rollout, attempt_id=event.attempt_id, started_ms=started_ms)
        rollout = self._enter(rollout, state, new_state)
        yield self._say(rollout, event.time, event)
        if new_state in FINAL:
            self._finished.set(event.rollout_id.encode(), record.timestamp_ms, state)
            self._watches[partition].pop(event.rollout_id, None)
            self.counts[new_state] += 1
        elif new_state == "requeuing":
            self._watches[partition].pop(event.rollout_id, None)
            rollout = replace(rollout, attempt=rollout.attempt + 1, attempt_id=None)
            self._save(rollout, state)
            yield self._task(rollout, event.time)
        elif event.kind == "started":
            self._watch(partition, rollout)

    def _enter(self, rollout: Rollout, state: State, name: RolloutStateName) -> Rollout:
        """The rollout in its new state, kept unless that is final."""
        rollout = replace(rollout, state=name, revision=rollout.revision + 1)
        if name in FINAL:
            state.delete(_ROLLOUT + rollout.command.rollout_id.encode())
        else:
            self._save(rollout, state)
        return rollout

    def _say(self, rollout: Rollout, time: datetime, event: AttemptEvent | None = None) -> Output:
        """The rollout's state as a record; `event` is what led there."""
        command = rollout.command
        return self._output(
            RolloutState(
                rollout_id=command.rollout_id,
                group_id=command.group_id,
                group_size=command.group_size,
                task_id=command.task_id,
                mode=command.mode,
                state=rollout.state,
                is_final=rollout.state in FINAL,
                attempt=rollout.attempt if event else 0,
                attempt_id=rollout.attempt_id,
                attempt_status=ended_as(event) if event else None,
                error=event.error if event else None,
                revision=rollout.revision,
                metadata=command.metadata,
                time=time,
            )
        )

    # --- outputs and state ---------------------------------------------------------------------------

    def _task(self, rollout: Rollout, time: datetime) -> Output:
        command = rollout.command
        return self._output(
            AttemptTask(
                rollout_id=command.rollout_id,
                attempt=rollout.attempt,
                group_id=command.group_id,
                group_size=command.group_size,
                task_id=command.task_id,
                mode=command.mode,
                task=command.task,
                config=command.config,
                resources=command.resources,
                metadata=command.metadata,
                time=time,
            )
        )

    def _end(self, watch: _Watch, status: AttemptOutcome, error: str, time: datetime) -> Output:
        return self._output(
            AttemptEvent(
                rollout_id=watch.rollout_id,
                attempt_id=watch.attempt_id,
                attempt=watch.attempt,
                kind="ended",
                status=status,
                runner_id=DISPATCHER,
                error=error,
                origin=watch.origin,
                time=time,
            )
        )

    def _output(self, record: Record) -> Output:
        topic = self._names[type(record)]
        return Output(topic, record.key, self.codec.encode(record, topic))

    def _decode(self, record: LogRecord) -> RolloutCommand | AttemptEvent | DeadLetter:
        try:
            event = self.codec.decode(record.value, self._types[record.topic])
        except BadRecordError as error:
            return self._bad(record, error)
        if record.key != event.key:
            words = f"the key is not rollout {event.rollout_id}"
            return self._bad(record, BadRecordError(words, reason=KEY_MISMATCH))
        return event

    def _bad(self, record: LogRecord, error: BadRecordError) -> DeadLetter:
        self.counts["dead_letters"] += 1
        return dead_letter(self.name, record, error.reason, str(error))

    def _load(self, rollout_id: bytes, state: State) -> Rollout | None:
        value = state.get(_ROLLOUT + rollout_id)
        return Rollout.from_bytes(value, self.codec) if value is not None else None

    def _save(self, rollout: Rollout, state: State) -> None:
        state.put(_ROLLOUT + rollout.command.rollout_id.encode(), rollout.to_bytes(self.codec))

    def _watch(self, partition: int, rollout: Rollout) -> None:
        """Keep the deadlines of the rollout's attempt, if one runs."""
        if rollout.attempt_id is None or rollout.state not in {"preparing", "running"}:
            return
        config = rollout.command.config
        rollout_id = rollout.command.rollout_id
        ends_s = config.timeout_s + self.settings.deadline_slack_s
        self._watches[partition][rollout_id] = _Watch(
            rollout_id,
            rollout.attempt_id,
            rollout.attempt,
            AttemptOrigin.of(rollout.command),
            rollout.started_ms + int(ends_s * 1000),
            int(config.heartbeat_timeout_s * 1000),
        )

    def _see(self, partition: int, rollout_id: str) -> None:
        """A sign of life: silence counts from the next tick on."""
        watch = self._watches[partition].get(rollout_id)
        if watch is not None:
            watch.seen_ms = None
