"""In-memory twins of what a runner talks to, and an attempt on them."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.builders import CODEC, TIME, an_id

from headrace.schemas.records import AttemptTask, Record, ResourceVersion, RolloutConfig
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.errors import ProxyFailedError
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Delivered
from headrace.streams.runner.sequencer import LocalSequencer, Sequencer


class MemoryOutlet:
    """An Outlet. Acknowledges at once, or, held, when `settle` is called."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.records: list[Record] = []
        self.is_held = is_held
        self.refuse: Callable[[Record], Exception | None] = lambda _: None
        self._waiting: list[Delivered] = []

    def publish(self, record: Record, delivered: Delivered) -> None:
        error = self.refuse(record)
        if error is not None:
            raise error
        CODEC.encode(record, "any")  # as Kafka's would: what can't be encoded is refused
        self.records.append(record)
        self._waiting.append(delivered)
        if not self.is_held:
            self.settle()

    def settle(self, why_not: str | None = None) -> None:
        waiting, self._waiting = self._waiting, []
        for delivered in waiting:
            delivered(why_not)

    def has_room(self) -> bool:
        return True

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


class SharedSequencer(LocalSequencer):
    """A Sequencer as the proxy's: others take ids too, and one can be made to wait or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: str | None = None  # type: ignore[assignment]
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    is_shared = True

    def next(self) -> int:
        sequence_id = super().next()
        self.asked.set()
        self.may_answer.wait()
        if self.failure is not None:
            raise ProxyFailedError(self.failure)
        return sequence_id

    def take_elsewhere(self) -> int:
        return super().next()


class FixedResources:
    """A ResourceResolver."""

    def __init__(self, **versions: ResourceVersion) -> None:
        self.versions = versions

    def resolve(self, pinned: Mapping[str, int]) -> Mapping[str, ResourceVersion]:  # noqa: ARG002
        return self.versions

    def wait_for(self, name: str, version: int, timeout_s: float) -> ResourceVersion:  # noqa: ARG002
        return self.versions[name]


def a_task(name: str = "r", **fields: Any) -> AttemptTask:
    config = {key: fields.pop(key) for key in list(fields) if key in RolloutConfig.model_fields}
    defaults: dict[str, Any] = {
        "rollout_id": an_id("rollout", name),
        "attempt": 1,
        "group_id": f"group-{name}",
        "task_id": f"task-{name}",
        "task": '{"question": 1}',
        "config": RolloutConfig(**config),
        "time": TIME,
    }
    return AttemptTask(**(defaults | fields))


@contextmanager
def a_mailbox() -> Iterator[Mailbox]:
    """Of a loop that does not run: for what never waits."""
    loop = asyncio.new_event_loop()
    yield Mailbox(loop)
    loop.close()


def an_attempt(
    outlet: MemoryOutlet,
    mailbox: Mailbox,
    name: str = "r",
    sequencer: Sequencer | None = None,
    **fields: Any,
) -> Attempt:
    return Attempt(
        a_task(name, **fields),
        an_id("attempt", name),
        outlet=outlet,
        outbox=Outbox(mailbox),
        sequencer=sequencer or LocalSequencer(),
    )
