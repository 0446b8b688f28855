"""The proxy under faults of its clients, its upstream and Kafka, and killed itself (G1, G2, G3)."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.chaos.proxy_calls import Call
from tests.chaos.proxy_scene import Kept, Load, TriedAttempt, a_load, audit, check_log, read_spans
from tests.pipeline import seeded
from tests.proxy.process import ProxyProcess, a_process, upstream_process

from headrace.cli.stack.kafka import KafkaBroker
from headrace.proxy.keys import add_key
from headrace.schemas.records import Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics
from headrace.streams.client.partitions import partition_of
from headrace.streams.client.tail import Place, Tail
from headrace.streams.settings import KafkaSettings

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

NUM_ATTEMPTS = 250
CALLS_EACH = 40
NUM_WORKERS = 4
NUM_LANES = 16
"""Attempts at a time, each with so many workers."""
SAMPLED = 40
"""Of so many whole answers, one is looked for in Kafka at once."""


GAUGES = ("running_calls", "open_attempts", "unacknowledged_records")
"""What is nothing when all is done."""


class Acknowledged:
    """G1: as a client has the end of an answer, Kafka has its spans. Looked at on the spot."""

    def __init__(self, kafka: KafkaSettings, tail: Tail) -> None:
        self._topic = topic_name(Span, kafka.topic_prefix)
        self._tail = tail
        self._num_whole = 0
        self._ends: list[tuple[Call, Place, int]] = []
        """Where the call's spans are, and the end of that place."""

    def look(self, call: Call, attempt: TriedAttempt) -> None:
        self._num_whole += 1
        if self._num_whole % SAMPLED:
            return
        num_partitions = self._tail.num_partitions(self._topic)
        place = Place(self._topic, partition_of(attempt.rollout_id.encode(), num_partitions))
        self._ends.append((call, place, self._tail.ends([place])[place]))

    def check(self, kept: Sequence[Kept]) -> None:
        calls = [each for each in kept if each.span.generation]
        for call, place, end in self._ends:
            mine = [each for each in calls if call.prompt in each.generation.request]
            assert mine
            assert all(each.place == place and each.offset < end for each in mine)
        assert len(self._ends) == self._num_whole // SAMPLED


async def run_lanes(load: Load, rng: random.Random, proxy: ProxyProcess) -> list[float]:
    """All attempts; return the proxy's memory at a third of them, and at the end."""
    memory: list[float] = []
    attempts = iter(range(NUM_ATTEMPTS))

    async def lane() -> None:
        for number in attempts:
            if number == NUM_ATTEMPTS // 3:
                memory.append(proxy.resident_mib())
            # A third of them is told to close while calls run.
            await load.run(CALLS_EACH, NUM_WORKERS, int(CALLS_EACH * rng.uniform(0.7, 1.6)))

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_LANES):
            group.create_task(lane())
    return [*memory, proxy.resident_mib()]


def test_ten_thousand_calls(kafka: KafkaBroker, topic_prefix: str, tmp_path: Path) -> None:
    """Clients that leave, an upstream with every fault, attempts that close: each id is a span or void."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(settings)
    keys = tmp_path / "keys.json"
    key = add_key(keys, "test")
    arguments = ["--keys", str(keys)]
    with (
        seeded("proxy") as rng,
        upstream_process() as upstream,
        Tail(settings, name="ends") as tail,
        a_process(ProxyProcess(tmp_path / "proxy", settings, upstream, arguments=arguments)) as proxy,
    ):
        proxy.wait_ready()
        acknowledged = Acknowledged(settings, tail)

        async def run() -> tuple[Load, list[float]]:
            async with a_load(proxy.url, key, rng) as load:
                load.on_end = acknowledged.look
                return load, await run_lanes(load, rng, proxy)

        load, memory = asyncio.run(run())
        assert [proxy.metric(f"headrace_proxy_{name}") for name in GAUGES] == [0.0] * len(GAUGES)
        num_calls = proxy.metric("headrace_proxy_calls_total")
        proxy.stop()
        assert proxy.exit_status == 0
    kept = read_spans(settings)
    counted = audit(kept, load.calls, load.attempts)
    print(counted, "MiB:", memory)
    assert all(attempt.failure is None for attempt in load.attempts.values())
    assert len(load.calls) == NUM_ATTEMPTS * CALLS_EACH
    # The others came to a closed attempt, or their client had gone before they had come.
    assert num_calls == len({each.generation.request for each in kept if each.span.generation})
    acknowledged.check(kept)
    assert memory[1] < memory[0] * 1.1 + 10
    check_log(proxy.log(), [key, *(attempt.token for attempt in load.attempts.values())])
