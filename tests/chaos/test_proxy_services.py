"""A proxy whose Kafka freezes, dies and comes back, and a proxy that is killed -9 itself (G1, G3)."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.chaos.proxy_calls import Call
from tests.chaos.proxy_scene import Load, TriedAttempt, a_load, audit, check_log, read_spans
from tests.pipeline import seeded
from tests.proxy.harness import until
from tests.proxy.process import ProxyProcess, a_process, upstream_process

from headrace.cli.stack.kafka import KafkaBroker
from headrace.streams.client.admin import apply_topics
from headrace.streams.settings import KafkaSettings

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

NUM_ATTEMPTS = 8
WORKERS_EACH = 3
IMPATIENT = {"delivery_timeout_s": "3", "late_s": "0.5", "close_timeout_s": "2"}
AT_ONCE_S = 1.0
"""For a refusal, on a machine with much else to do."""


@asynccontextmanager
async def callers(load: Load) -> AsyncIterator[list[TriedAttempt]]:
    """Attempts that are called without end, and are not closed."""
    attempts = [await load.open() for _ in range(NUM_ATTEMPTS)]
    is_over = asyncio.Event()

    async def work(attempt: TriedAttempt) -> None:
        while not is_over.is_set():
            call = await load.call(attempt)
            if call.retry_after is not None:
                # As clients do, but sooner.
                await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for attempt in attempts * WORKERS_EACH:
            group.create_task(work(attempt))
        try:
            yield attempts
        finally:
            is_over.set()


def num_whole(load: Load) -> int:
    return sum(call.is_whole for call in load.calls)


async def flows(load: Load, number: int) -> None:
    """So many more answers have come whole."""
    target = num_whole(load) + number
    await until(lambda: num_whole(load) >= target)


async def knows(proxy: ProxyProcess, *, is_away: bool) -> None:
    """Return as the proxy says of Kafka what is so. An engine that has just died is another matter."""

    async def look() -> bool:
        answer = await asyncio.to_thread(proxy.get, "/readyz")
        return answer is not None and ("Kafka" in (answer.json()["reason"] or "")) == is_away

    async with asyncio.timeout(60):
        while not await look():  # noqa: ASYNC110  the proxy is elsewhere
            await asyncio.sleep(0.02)


async def freeze(load: Load, proxy: ProxyProcess, broker: KafkaBroker) -> None:
    """G1: as nothing is acknowledged, nobody gets the end of an answer; then all go on as if nothing was."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        await knows(proxy, is_away=True)
        before = num_whole(load)
        await asyncio.sleep(0.5)
        assert num_whole(load) == before
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    await knows(proxy, is_away=False)
    await flows(load, 200)


async def refuses_at_once(load: Load, attempt: TriedAttempt) -> None:
    loop = asyncio.get_running_loop()
    for is_stream in (False, True):
        began = loop.time()
        call = await load.call(attempt, fault="none", leaves_after_s=None, is_stream=is_stream)
        assert loop.time() - began < AT_ONCE_S
        assert (call.status, call.retry_after is not None) == (503, True), call


def test_kafka_freezes_dies_and_comes_back(kafka_factory: Callable[[], KafkaBroker], tmp_path: Path) -> None:
    broker = kafka_factory()
    broker.start()
    settings = KafkaSettings(bootstrap_servers=broker.bootstrap_servers)
    apply_topics(settings)
    with (
        seeded("proxy without Kafka") as rng,
        upstream_process() as upstream,
        a_process(ProxyProcess(tmp_path / "proxy", settings, upstream, **IMPATIENT)) as proxy,
    ):
        proxy.wait_ready()
        load = asyncio.run(live_through(proxy, broker, rng))
        proxy.stop()
        assert proxy.exit_status == 0
    kept = read_spans(settings)
    print(audit(kept, load.calls, load.attempts, is_kafka_there=False))
    check_failures(load)
    check_log(proxy.log(), [attempt.token for attempt in load.attempts.values()])


async def live_through(proxy: ProxyProcess, broker: KafkaBroker, rng: random.Random) -> Load:
    async with a_load(proxy.url, "", rng) as load:
        early = await load.open()
        async with callers(load) as attempts:
            await flows(load, 300)
            await freeze(load, proxy, broker)
            await asyncio.to_thread(broker.kill)
            await knows(proxy, is_away=True)
            before = num_whole(load)
            await refuses_at_once(load, attempts[0])
            await refuses_at_once(load, early)
            await until(lambda: lost_in_flight(load))
            assert num_whole(load) == before
            await asyncio.to_thread(broker.start)
            await knows(proxy, is_away=False)
            await flows(load, 300)
        new = await load.open()
        for _ in range(20):
            call = await load.call(new, fault="none", leaves_after_s=None)
            assert call.is_whole, call
        for attempt in load.attempts.values():
            await load.close(attempt)
        assert (new.failure, new.last >= 20) == (None, True)
        assert early.failure is None
        return load


def lost_in_flight(load: Load) -> bool:
    """Of both kinds: a stream that ends with an error, and an answer that is one."""
    return {(call.status, call.is_stream) for call in load.calls if is_lost(call)} >= {
        (200, True),
        (503, False),
    }


def is_lost(call: Call) -> bool:
    """It was made, and Kafka did not take its record."""
    return "withheld" in call.error


def check_failures(load: Load) -> None:
    """Whoever lost a record says so at its end."""
    lost = {call.attempt_id for call in load.calls if is_lost(call)}
    assert lost
    for attempt_id in lost:
        assert "not acknowledged" in (load.attempts[attempt_id].failure or ""), attempt_id
