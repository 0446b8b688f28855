"""Rollouts on real Kafka, with the real dispatcher and real runners as processes."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.builders import CODEC
from tests.pipeline import wait_until

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.ids import uuid7
from headrace.schemas.records import (
    AttemptEvent,
    AttemptTask,
    DeadLetter,
    Record,
    Reward,
    RolloutCommand,
    RolloutConfig,
    RolloutState,
    Span,
    now,
)
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics, group_lag
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.tail import Place, Tail
from headrace.streams.settings import KafkaSettings

HERE = Path(__file__).parent
DISPATCHER = {
    "HEADRACE_HOST_TICK_INTERVAL_S": "0.1",
    "HEADRACE_HOST_COMMIT_INTERVAL_S": "0.1",
    "HEADRACE_HOST_SESSION_TIMEOUT_S": "1.5",
    "HEADRACE_HOST_HEARTBEAT_INTERVAL_S": "0.4",
    "HEADRACE_DISPATCHER_DEADLINE_SLACK_S": "2",
}
RUNNER = {"HEADRACE_RUNNER_SESSION_TIMEOUT_S": "1.5", "HEADRACE_RUNNER_DRAIN_TIMEOUT_S": "20"}

RecordT = TypeVar("RecordT", bound=Record)
ProcessT = TypeVar("ProcessT", bound=ProcessorProcess)


class RunnerProcess(ProcessorProcess):
    """`headrace runner ARGUMENTS`."""

    def __init__(self, root: Path, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__("runner", root, env=env)
        self._arguments = list(arguments)

    def _command(self) -> Sequence[str]:
        program = "from headrace.cli.runner_commands import runner; runner()"
        return [sys.executable, "-c", program, *self._arguments, "--app-dir", str(HERE)]

    def send(self, number: signal.Signals) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 30.0) -> int:
        wait_until(lambda: self.exit_status is not None, what="the runner's exit", timeout_s=timeout_s)
        assert self.exit_status is not None
        return self.exit_status


class Rollouts:
    """Topics of one test; processes end with it."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self._processes: list[ProcessorProcess] = []
        self._tail = Tail(kafka, name="test")
        self._read: dict[type[Record], list[Record]] = {}
        self.publisher = Publisher(kafka, linger_ms=0)

    def close(self, *, is_failed: bool) -> None:
        self._tail.close()
        for process in self._processes:
            process.kill()
            if is_failed:
                print(f"--- {process.root.name}, exit status {process.exit_status}\n{process.tail()}")

    # --- processes -----------------------------------------------------------------------------------

    def dispatcher(self) -> ProcessorProcess:
        state = {"HEADRACE_HOST_STATE_DIR": str(self.folder / "state")}
        process = ProcessorProcess(
            "dispatcher", self.folder / "dispatcher", env=self._env(DISPATCHER | state)
        )
        return self._start(process)

    def runner(self, *arguments: str, number: int = 1, **env: str) -> RunnerProcess:
        process = RunnerProcess(self.folder / f"runner-{number}", arguments, self._env(RUNNER | env))
        return self._start(process)

    def _start(self, process: ProcessT) -> ProcessT:
        self._processes.append(process)
        process.start()
        return process

    def _env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_KAFKA_TOPIC_PREFIX": self.kafka.topic_prefix,
            **env,
        }

    # --- what goes in --------------------------------------------------------------------------------

    def enqueue(self, *tasks: Any, resources: Mapping[str, int] | None = None, **config: Any) -> list[str]:
        ids = [uuid7() for _ in tasks]
        for rollout_id, task in zip(ids, tasks, strict=True):
            self.publisher.publish(
                RolloutCommand(
                    kind="enqueue",
                    rollout_id=rollout_id,
                    group_id=rollout_id,
                    task=task if isinstance(task, str) else json.dumps(task),
                    task_id=f"task-{rollout_id[-4:]}",
                    config=RolloutConfig(**config),
                    resources=dict(resources or {}),
                    time=now(),
                )
            )
        self.publisher.flush()
        return ids

    def cancel(self, *ids: str) -> None:
        for rollout_id in ids:
            self.publisher.publish(
                RolloutCommand(kind="cancel", rollout_id=rollout_id, group_id=rollout_id, time=now())
            )
        self.publisher.flush()

    # --- what comes out ------------------------------------------------------------------------------

    def read(self, record: type[RecordT]) -> list[RecordT]:
        """All of a topic, to its present end."""
        places = self._tail.places(topic_name(record, self.kafka.topic_prefix))
        begins, ends = self._tail.beginnings(places), self._tail.ends(places)
        return [CODEC.decode(each.value, record) for each in self._tail.read(begins, ends)]

    def values(self, record: type[Record]) -> list[tuple[Place, int, bytes | None]]:
        places = self._tail.places(topic_name(record, self.kafka.topic_prefix))
        begins, ends = self._tail.beginnings(places), self._tail.ends(places)
        return [(each.place, each.offset, each.value) for each in self._tail.read(begins, ends)]

    def states(self) -> dict[str, RolloutState]:
        """The newest of each rollout."""
        newest: dict[str, RolloutState] = {}
        for state in self.read(RolloutState):
            known = newest.get(state.rollout_id)
            if known is None or state.revision > known.revision:
                newest[state.rollout_id] = state
        return newest

    def wait_final(self, ids: Sequence[str], timeout_s: float = 60.0) -> dict[str, RolloutState]:
        """Their final states."""
        found: dict[str, RolloutState] = {}

        def are_final() -> bool:
            found.update(self.states())
            return all(rollout_id in found and found[rollout_id].is_final for rollout_id in ids)

        try:
            wait_until(are_final, what="final states", timeout_s=timeout_s)
        except AssertionError as error:
            left = {each: found[each].state if each in found else None for each in ids}
            raise AssertionError(
                f"not final: {[each for each in left.items() if each[1] != 'succeeded']}"
            ) from error
        return {rollout_id: found[rollout_id] for rollout_id in ids}

    def wait_running(self, *ids: str) -> None:
        def are_running() -> bool:
            states = self.states()
            return all(each in states and states[each].state == "running" for each in ids)

        wait_until(are_running, what=f"{len(ids)} rollouts to run")

    def wait_some_running(self, number: int) -> None:
        def are_running() -> bool:
            return sum(state.state == "running" for state in self.states().values()) == number

        wait_until(are_running, what=f"{number} rollouts to run")

    def ends(self) -> dict[str, list[AttemptEvent]]:
        """The ends of each attempt, in the order of the log."""
        found: dict[str, list[AttemptEvent]] = {}
        for event in self.read(AttemptEvent):
            if event.kind == "ended":
                found.setdefault(event.attempt_id, []).append(event)
        return found

    def check_sequences(self) -> None:
        """G2: what runners end has each id up to the last accounted for, once."""
        counted: dict[str, list[int]] = {}
        events: list[Span | Reward] = [*self.read(Span), *self.read(Reward)]
        for record in events:
            if record.sequence_id is not None:
                counted.setdefault(record.attempt_id, []).append(record.sequence_id)
        for attempt_id, ends in self.ends().items():
            for end in ends:
                if end.last_sequence_id is not None:
                    expected = list(range(1, end.last_sequence_id + 1))
                    assert sorted(counted.get(attempt_id, [])) == expected, attempt_id

    def runners_lag(self) -> int:
        topic = topic_name(AttemptTask, self.kafka.topic_prefix)
        return sum(group_lag(self.kafka, f"{self.kafka.topic_prefix}-runners", [topic]).values())

    def dead_letters(self) -> list[DeadLetter]:
        return self.read(DeadLetter)


@contextmanager
def rollouts_on(kafka: KafkaSettings, folder: Path) -> Iterator[Rollouts]:
    apply_topics(kafka)
    made = Rollouts(kafka, folder)
    is_failed = True
    try:
        yield made
        is_failed = False
    finally:
        made.close(is_failed=is_failed)


def rewards_of(rollouts: Rollouts) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for reward in rollouts.read(Reward):
        found.setdefault(reward.rollout_id, {})[reward.name] = reward.value
    return found


def assert_one_end_each(rollouts: Rollouts) -> None:
    for attempt_id, ends in rollouts.ends().items():
        assert len(ends) == 1, (attempt_id, ends)
