"""The dispatcher: each rollout to one final state, whatever happens on the way (G4, G5, G7, C1, C2)."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import CODEC, EPOCH_MS, PREFIX, TIME, an_id

from headrace.schemas.records import (
    AttemptEvent,
    AttemptOrigin,
    AttemptTask,
    DeadLetter,
    Record,
    RolloutCommand,
    RolloutConfig,
    RolloutState,
)
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord, Output
from headrace.streams.processors.dispatcher import Dispatcher, DispatcherSettings
from headrace.streams.processors.lifecycle import FINAL
from headrace.streams.state import MemoryState

RecordT = TypeVar("RecordT", bound=Record)


def enqueue(name: str = "r", **config: Any) -> RolloutCommand:
    return RolloutCommand(
        kind="enqueue",
        rollout_id=an_id("rollout", name),
        group_id="g",
        task='{"secret": "prompt"}',
        config=RolloutConfig(**config),
        time=TIME,
    )


def cancel(name: str = "r") -> RolloutCommand:
    return RolloutCommand(kind="cancel", rollout_id=an_id("rollout", name), group_id="g", time=TIME)


def event(
    kind: str, status: str, *, name: str = "r", attempt: int = 1, runner: str = "x", **fields: Any
) -> AttemptEvent:
    origin = AttemptOrigin(group_id="g", dispatched=True) if kind == "started" else None
    return AttemptEvent(
        rollout_id=an_id("rollout", name),
        attempt_id=an_id("attempt", name, attempt, runner),
        attempt=attempt,
        kind=kind,
        status=status,
        runner_id=runner,
        origin=origin,
        time=TIME,
        **fields,
    )


class Host:
    """A dispatcher, its state, and the log that its own events go back to."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.logs: dict[str, list[LogRecord]] = {}
        self.outputs: list[Output] = []
        self.restart()

    def restart(self) -> None:
        self.dispatcher = Dispatcher(PREFIX, DispatcherSettings())
        self.dispatcher.assigned(0, self.state)

    def log(self, *records: Record) -> list[LogRecord]:
        out = []
        for record in records:
            topic = topic_name(type(record), PREFIX)
            out.append(self.append(topic, record.key, CODEC.encode(record, topic)))
        return out

    def append(self, topic: str, key: bytes, value: bytes) -> LogRecord:
        log = self.logs.setdefault(topic, [])
        log.append(LogRecord(topic, 0, len(log), EPOCH_MS, key, value))
        return log[-1]

    def handle(self, records: Sequence[LogRecord]) -> list[LogRecord]:
        """What the dispatcher wrote into its own topics by this, as the log has it."""
        outputs = self.dispatcher.handle(0, records, self.state)
        self.outputs += outputs
        return self.own(outputs)

    def own(self, outputs: Sequence[Output]) -> list[LogRecord]:
        return [
            self.append(out.topic, out.key, out.value)
            for out in outputs
            if out.topic in self.dispatcher.topics
        ]

    def feed(self, *records: Record) -> None:
        """And what comes of it, until nothing does."""
        todo = self.log(*records)
        while todo:
            todo = self.handle(todo)

    def tick(self, now_ms: int) -> None:
        todo = self.own(self.dispatcher.tick(now_ms))
        while todo:
            todo = self.handle(todo)

    def emitted(self, record: type[RecordT]) -> list[RecordT]:
        topic = topic_name(record, PREFIX)
        return [CODEC.decode(out.value, record) for out in self.outputs if out.topic == topic]

    @property
    def states(self) -> list[str]:
        return [state.state for state in self.emitted(RolloutState)]

    @property
    def tasks(self) -> list[int]:
        return [task.attempt for task in self.emitted(AttemptTask)]


def test_a_rollout_from_queue_to_success() -> None:
    host = Host()
    host.feed(
        enqueue(), event("started", "preparing"), event("heartbeat", "running"), event("ended", "succeeded")
    )
    assert host.states == ["queuing", "preparing", "running", "succeeded"]
    final = host.emitted(RolloutState)[-1]
    assert (final.is_final, final.attempt, final.attempt_status) == (True, 1, "succeeded")
    assert [state.revision for state in host.emitted(RolloutState)] == [1, 2, 3, 4]
    task = host.emitted(AttemptTask)[0]
    assert (task.task, task.config) == (enqueue().task, enqueue().config)


def test_it_is_tried_again_until_attempts_run_out() -> None:
    host = Host()
    host.feed(enqueue(retry_on=["failed"], max_attempts=2))
    host.feed(event("started", "running"), event("ended", "failed", error="boom"))
    host.feed(event("started", "running", attempt=2), event("ended", "failed", attempt=2, error="again"))
    assert host.states == ["queuing", "running", "requeuing", "running", "failed"]
    assert host.tasks == [1, 2]
    assert host.emitted(RolloutState)[-1].error == "again"


@pytest.mark.parametrize("when", ["queuing", "running", "requeuing"])
def test_cancel(when: str) -> None:
    host = Host()
    host.feed(enqueue(retry_on=["failed"]))
    if when != "queuing":
        host.feed(event("started", "running"))
    if when == "requeuing":
        host.feed(event("ended", "failed"))
    host.feed(cancel())
    assert host.states[-1] == "cancelled"
    host.feed(event("started", "running", attempt=len(host.tasks)), event("ended", "succeeded"), cancel())
    assert host.states.count("cancelled") == 1
    assert host.states[-1] == "cancelled"


def test_its_own_ends_say_whose_attempt_it_was() -> None:
    """An attempt that never started belongs to its group all the same."""
    host = Host()
    host.feed(enqueue(retry_on=["failed"], max_attempts=7))
    host.feed(cancel())
    (end,) = host.emitted(AttemptEvent)
    assert end.origin is not None
    assert (end.origin.group_id, end.origin.dispatched) == ("g", True)
    assert (end.origin.max_attempts, end.origin.retry_on) == (7, ("failed",))


def test_cancel_when_the_end_was_first_in_the_log_cancels_what_follows() -> None:
    host = Host()
    host.feed(enqueue(retry_on=["failed"]), event("started", "running"))
    todo = host.handle(host.log(cancel()))  # its event is in the log only after:
    host.logs[todo[0].topic].pop()
    end = host.log(event("ended", "failed"))
    late = [host.append(record.topic, record.key or b"", record.value or b"") for record in todo]
    todo = [*end, *late]
    while todo:
        todo = host.handle(todo)
    assert host.states == ["queuing", "running", "requeuing", "cancelled"]


def test_the_first_end_counts() -> None:
    """G7, C1: the runner's success came after the deadline's timeout."""
    host = Host()
    host.feed(enqueue(max_attempts=1), event("started", "running"))
    host.feed(event("ended", "timeout"), event("ended", "succeeded"))
    assert host.states == ["queuing", "running", "failed"]


def test_of_two_runners_with_one_task_the_first_in_the_log_runs_it() -> None:
    host = Host()
    host.feed(enqueue(), event("started", "running", runner="a"), event("started", "running", runner="b"))
    host.feed(event("ended", "failed", runner="b"))
    assert host.states == ["queuing", "running"]
    host.feed(event("ended", "succeeded", runner="a"))
    assert host.states[-1] == "succeeded"


def test_deadlines_are_events_and_the_log_decides() -> None:
    host = Host()
    host.feed(enqueue(timeout_s=10, heartbeat_timeout_s=5, retry_on=["timeout"]), event("started", "running"))
    before = len(host.outputs)
    for second in range(0, 12, 4):
        host.tick(EPOCH_MS + second * 1000)
        host.feed(event("heartbeat", "running"))
    assert len(host.outputs) == before
    host.tick(EPOCH_MS + 12_000)
    assert host.states == ["queuing", "running", "requeuing"]
    assert host.tasks == [1, 2]


def test_silence_ends_an_attempt() -> None:
    host = Host()
    host.feed(enqueue(heartbeat_timeout_s=5), event("started", "running"))
    host.tick(EPOCH_MS)
    host.tick(EPOCH_MS + 4_999)
    assert host.states == ["queuing", "running"]
    host.tick(EPOCH_MS + 5_000)
    assert host.states == ["queuing", "running", "requeuing"]
    assert host.emitted(RolloutState)[-1].attempt_status == "unresponsive"


def test_a_restart_keeps_deadlines() -> None:
    host = Host()
    host.feed(enqueue(timeout_s=10, max_attempts=1), event("started", "running"))
    host.restart()
    assert host.dispatcher.num_watched == 1
    host.tick(EPOCH_MS + 12_000)
    assert host.states[-1] == "failed"


def test_events_read_before_their_command_wait_for_it() -> None:
    """On a replay nothing orders two topics."""
    host = Host()
    host.feed(event("started", "running"), event("ended", "succeeded"))
    assert host.states == []
    host.feed(enqueue())
    assert host.states == ["queuing", "running", "succeeded"]
    assert [key for key, _ in host.state.scan(b"h")] == []


def test_attempts_that_nobody_dispatched_are_not_kept() -> None:
    host = Host()
    origin = AttemptOrigin(group_id="g")
    host.feed(event("started", "running").model_copy(update={"origin": origin}), event("ended", "succeeded"))
    assert list(host.state.scan(b"")) == []


def test_finished_rollouts_are_forgotten() -> None:
    """C5."""
    host = Host()
    host.feed(enqueue(), event("started", "running"), event("ended", "succeeded"))
    assert sorted(key[:1] for key, _ in host.state.scan(b"")) == [b"e", b"f"]
    assert host.dispatcher.num_watched == 0
    host.feed(enqueue(), event("started", "running"), event("ended", "failed"))
    assert host.states == ["queuing", "running", "succeeded"]
    assert host.tasks == [1]


def test_bad_records_become_dead_letters() -> None:
    host = Host()
    (good,) = host.log(enqueue())
    host.handle([good._replace(value=b"\x01bad", offset=7), good, good._replace(key=b"other", offset=8)])
    assert [letter.reason for letter in host.emitted(DeadLetter)] == ["bad_record", "key_mismatch"]
    assert host.states == ["queuing"]


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_rollout_ends_once_whatever_happens(seed: int) -> None:  # noqa: C901  a story
    """Runners that die, double, fail and are late; redelivery, restarts, cancels, deadlines (C2)."""
    rng = random.Random(seed)
    host = Host()
    names = [f"r{i}" for i in range(rng.randint(1, 4))]
    configs = {
        name: {
            "max_attempts": rng.randint(1, 3),
            "retry_on": rng.sample(["failed", "timeout", "unresponsive"], rng.randint(0, 3)),
            "timeout_s": 60,
            "heartbeat_timeout_s": 20,
        }
        for name in names
    }
    records: list[Record] = [enqueue(name, **configs[name]) for name in names]
    records += [enqueue(name, **configs[name]) for name in names if rng.random() < 0.3]
    records += [cancel(name) for name in names if rng.random() < 0.2]
    for name in names:
        for attempt in range(1, 4):
            for runner in ["a", "b"][: 1 + (rng.random() < 0.2)]:
                if rng.random() < 0.15:
                    continue
                records.append(event("started", "running", name=name, attempt=attempt, runner=runner))
                if rng.random() < 0.7:
                    status = rng.choice(["succeeded", "failed"])
                    records.append(event("ended", status, name=name, attempt=attempt, runner=runner))
    rng.shuffle(records)
    log = host.log(*records)
    at = 0
    while at < len(log):
        size = rng.randint(1, 5)
        log += host.handle(log[at : at + size])
        at += size
        if rng.random() < 0.2:
            host.restart()
            at = max(0, at - rng.randint(0, 6))
    for name in names:  # whoever has not ended is ended by somebody
        for attempt in range(1, 5):
            host.feed(event("started", "running", name=name, attempt=attempt, runner="z"))
        for round_ in range(4):
            host.tick(EPOCH_MS + round_ * 100_000)
        host.feed(cancel(name))
    finals = [state for state in host.emitted(RolloutState) if state.is_final]
    by_rollout = Counter((state.rollout_id, CODEC.encode(state, "")) for state in finals)
    assert {rollout_id for rollout_id, _ in by_rollout} == {an_id("rollout", name) for name in names}
    assert len(by_rollout) == len(names)
    assert all(state.state in FINAL for state in finals)
    assert list(host.state.scan(b"r")) == []
    assert list(host.state.scan(b"h")) == []
    tasks = Counter((task.rollout_id, task.attempt) for task in host.emitted(AttemptTask))
    assert all(attempt <= 3 for _, attempt in tasks)
