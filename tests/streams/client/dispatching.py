"""The real dispatcher as a process, and a runner that does only what a test says."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.builders import CODEC

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.ids import uuid7
from headrace.schemas.records import AttemptEvent, AttemptOrigin, AttemptTask, now
from headrace.schemas.records.rollout import AttemptOutcome
from headrace.schemas.topics import topic_name
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.tail import Tail
from headrace.streams.settings import KafkaSettings


def dispatcher_process(settings: KafkaSettings, folder: Path) -> ProcessorProcess:
    """Not started yet."""
    env = {
        "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "HEADRACE_KAFKA_TOPIC_PREFIX": settings.topic_prefix,
        "HEADRACE_DISPATCHER_DEADLINE_SLACK_S": "0.2",
        "HEADRACE_HOST_STATE_DIR": str(folder / "state"),
        "HEADRACE_HOST_COMMIT_INTERVAL_S": "0.1",
        "HEADRACE_HOST_SESSION_TIMEOUT_S": "1.5",
        "HEADRACE_HOST_HEARTBEAT_INTERVAL_S": "0.4",
    }
    return ProcessorProcess("dispatcher", folder, env=env)


class HandRunner:
    """Takes tasks from the topic, and starts and ends attempts when told."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._publisher = Publisher(settings, linger_ms=1)
        self._tail = Tail(settings, name="hand-runner")
        places = self._tail.places(topic_name(AttemptTask, settings.topic_prefix))
        self._tail.move(self._tail.beginnings(places))
        self._tasks = self._read()

    def take(self, num_tasks: int) -> list[AttemptTask]:
        """The next tasks; waits until there are so many."""
        return [next(self._tasks) for _ in range(num_tasks)]

    def start(self, tasks: Sequence[AttemptTask]) -> list[AttemptEvent]:
        """Acknowledged when it returns, as `end` is."""
        events = [
            AttemptEvent(
                rollout_id=task.rollout_id,
                attempt_id=uuid7(),
                attempt=task.attempt,
                kind="started",
                status="running",
                runner_id="hand",
                origin=AttemptOrigin(group_id=task.group_id, group_size=task.group_size, dispatched=True),
                time=now(),
            )
            for task in tasks
        ]
        self._publish(events)
        return events

    def end(
        self,
        started: Sequence[AttemptEvent],
        status: AttemptOutcome = "succeeded",
        error: str | None = None,
    ) -> None:
        fields = {"kind": "ended", "status": status, "error": error, "origin": None, "last_sequence_id": 0}
        self._publish([event.model_copy(update=fields | {"time": now()}) for event in started])

    def run(self, num_tasks: int, status: AttemptOutcome = "succeeded", error: str | None = None) -> None:
        """Take so many tasks, start them and end them."""
        self.end(self.start(self.take(num_tasks)), status, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._publisher.close()
        self._tail.close()

    def _publish(self, events: Sequence[AttemptEvent]) -> None:
        for event in events:
            self._publisher.publish(event)
        self._publisher.flush()

    def _read(self) -> Iterator[AttemptTask]:
        deadline = time.monotonic() + 60
        while True:
            for record in self._tail.poll(0.2):
                if not record.at_end:
                    deadline = time.monotonic() + 60
                    yield CODEC.decode(record.value, AttemptTask)
            assert time.monotonic() < deadline, "no task came in 60 s"
