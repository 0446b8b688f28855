"""The order of things in a batch, with the journal and the stores in memory."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from headrace.schemas.errors import FatalError
from headrace.streams.host.metrics import HostMetrics
from headrace.streams.host.worker import Worker
from headrace.streams.processor import LogRecord, Output, State
from headrace.streams.state import Change, MemoryState

A0, B0, A1 = ("a", 0), ("b", 0), ("a", 1)


@dataclass
class Fetched:
    topic: str
    partition: int
    offset: int
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    timestamp: int = 1000
    headers: Sequence[tuple[str, bytes]] = (("h", b"1"),)


@dataclass
class Journal:
    events: list[str]
    fails_at: str = ""
    ends: dict[int, int] = field(default_factory=dict)
    """By partition, where the changelog ends; 41 after the first append."""

    async def publish(self, outputs: Sequence[Output]) -> None:
        await self._do(f"publish {len(outputs)}")

    async def append(self, partition: int, changes: Sequence[Change]) -> int | None:
        await self._do(f"append {partition}: {len(changes)}")
        self.ends[partition] = self.ends.get(partition, 41 - len(changes)) + len(changes)
        return self.ends[partition]

    async def _do(self, what: str) -> None:
        self.events.append(f"{what} sent")
        await asyncio.sleep(0)
        if self.fails_at and what.startswith(self.fails_at):
            raise ConnectionError(what)
        self.events.append(f"{what} acknowledged")


@dataclass
class Stores:
    events: list[str]
    states: dict[int, MemoryState] = field(default_factory=lambda: {0: MemoryState(), 1: MemoryState()})

    def __getitem__(self, partition: int) -> MemoryState:
        return self.states[partition]

    def apply(self, partition: int, changes: Iterable[Change], offset: int | None) -> None:
        self.events.append(f"store {partition} at {offset}")
        for key, value in changes:
            self.states[partition].delete(key) if value is None else self.states[partition].put(key, value)


@dataclass
class Recorder:
    events: list[str]
    name: str = "recorder"
    topics: Sequence[str] = ("a", "b")
    counts: dict[str, int] = field(default_factory=dict)

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        self.events.append(f"handle {partition}: " + " ".join(f"{r.topic}{r.offset}" for r in records))
        if any(record.value is None for record in records):
            raise ValueError("a bug")
        for record in records:
            state.put(b"%d" % record.offset, record.topic.encode())
        return [Output("out", b"k", b"v") for _ in records]

    def tick(self, now_ms: int) -> list[Output]:
        return [Output("tick", b"k", b"%d" % now_ms)]

    def assigned(self, partition: int, state: State) -> None:
        self.events.append(f"assigned {partition}: {len(list(state.scan(b'')))}")

    def revoked(self, partition: int) -> None:
        self.events.append(f"revoked {partition}")


@dataclass
class Bench:
    events: list[str]
    journal: Journal
    stores: Stores
    worker: Worker
    registry: CollectorRegistry

    def start(self) -> None:
        self.worker.assign({0, 1}, {A0: 0, B0: 0, A1: 0}, {0: 40, 1: 40})
        self.events.clear()


@pytest.fixture
def bench() -> Bench:
    events: list[str] = []
    journal, stores, registry = Journal(events), Stores(events), CollectorRegistry()
    metrics = HostMetrics("recorder", registry)
    worker = Worker(Recorder(events), journal, stores, metrics, clock=lambda: 5.0)
    return Bench(events, journal, stores, worker, registry)


def test_outputs_then_changelog_then_store_then_positions(bench: Bench) -> None:
    bench.start()
    fetched = {
        A0: [Fetched("a", 0, 0), Fetched("a", 0, 1)],
        A1: [Fetched("a", 1, 0)],
        B0: [Fetched("b", 0, 0)],
    }
    assert asyncio.run(bench.worker.process(fetched)) == {}
    assert bench.events == [
        "handle 0: a0 a1 b0",
        "handle 1: a0",
        "publish 4 sent",
        "publish 4 acknowledged",
        "append 0: 2 sent",
        "append 1: 1 sent",
        "append 0: 2 acknowledged",
        "append 1: 1 acknowledged",
        "store 0 at 41",
        "store 1 at 41",
    ]
    assert bench.worker.positions.committable() == {A0: 2, B0: 1, A1: 1}
    labels = {"processor": "recorder", "topic": "a"}
    assert bench.registry.get_sample_value("headrace_host_records_total", labels) == 3.0


@pytest.mark.parametrize("fails_at", ["publish", "append 0"])
def test_a_failure_leaves_state_and_positions_as_they_were(bench: Bench, fails_at: str) -> None:
    bench.start()
    bench.journal.fails_at = fails_at
    with pytest.raises(ConnectionError):
        asyncio.run(bench.worker.process({A0: [Fetched("a", 0, 0)]}))
    assert bench.worker.positions.committable() == {}
    assert bench.stores[0].get(b"0") is None
    assert not any(event.startswith("store") for event in bench.events)


def test_a_bug_in_handle_sends_nothing_of_the_batch(bench: Bench) -> None:
    bench.start()
    with pytest.raises(ValueError, match="a bug"):
        asyncio.run(bench.worker.process({A0: [Fetched("a", 0, 0)], A1: [Fetched("a", 1, 0, value=None)]}))
    assert bench.events == ["handle 0: a0", "handle 1: a0"]
    assert bench.worker.positions.committable() == {}


def test_a_gap_is_sought_back_to_and_the_rest_processed(bench: Bench) -> None:
    bench.start()
    fetched = {A0: [Fetched("a", 0, 7)], B0: [Fetched("b", 0, 0)]}
    assert asyncio.run(bench.worker.process(fetched)) == {A0: 0}
    assert bench.events[0] == "handle 0: b0"
    assert bench.worker.positions.committable() == {B0: 1}


def test_tick_publishes_only_while_partitions_are_assigned(bench: Bench) -> None:
    asyncio.run(bench.worker.tick())
    assert bench.events == []
    bench.start()
    asyncio.run(bench.worker.tick())
    assert bench.events == ["publish 1 sent", "publish 1 acknowledged"]


def test_assignment_replaces_the_one_before(bench: Bench) -> None:
    bench.stores[1].put(b"x", b"y")
    bench.worker.assign({0, 1}, {A0: 3, A1: 0}, {0: 40, 1: 40})
    bench.worker.assign({1}, {A1: 4}, {1: 40})
    bench.worker.release()
    assert bench.events == [
        "assigned 0: 0",
        "assigned 1: 1",
        "revoked 0",
        "revoked 1",
        "assigned 1: 1",
        "revoked 1",
    ]
    assert asyncio.run(bench.worker.process({A1: [Fetched("a", 1, 4)]})) == {}
    assert bench.events[-1] == "revoked 1"


@pytest.mark.parametrize("appended_before", [0, 1])
@pytest.mark.parametrize(
    ("frozen_s", "foreign", "ends"),
    [
        pytest.param(30.0, 5, True, id="frozen, and another wrote"),
        pytest.param(30.0, 0, False, id="frozen, and nobody did"),
        pytest.param(1.0, 5, False, id="interrupted by one that was frozen"),
    ],
)
def test_state_that_another_has_taken_over_is_not_kept(
    frozen_s: float,
    foreign: int,
    ends: bool,  # noqa: FBT001
    appended_before: int,
) -> None:
    """C12: what it lacks would else be hidden by an offset that is behind it."""
    events: list[str] = []
    now = [100.0]
    journal, stores = Journal(events), Stores(events)
    metrics = HostMetrics("recorder", CollectorRegistry())
    worker = Worker(
        Recorder(events), journal, stores, metrics, monotonic=lambda: now[0], session_timeout_s=10.0
    )
    worker.assign({0, 1}, {A0: 0, B0: 0, A1: 0}, {0: 40, 1: 40})
    if appended_before:
        asyncio.run(worker.process({A0: [Fetched("a", 0, 0)]}))
    now[0] += frozen_s
    journal.ends[0] = 40 + appended_before + foreign
    if ends:
        with pytest.raises(FatalError, match="another process has taken over partition 0"):
            asyncio.run(worker.process({A0: [Fetched("a", 0, appended_before)]}))
        assert worker.positions.committable() == ({A0: 1} if appended_before else {})
        assert len([event for event in events if event.startswith("store 0")]) == appended_before
    else:
        asyncio.run(worker.process({A0: [Fetched("a", 0, appended_before)]}))
        assert worker.positions.committable() == {A0: appended_before + 1}
