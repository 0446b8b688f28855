import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proxy.loops import run, until

from headrace.proxy.engines import NEW_WEIGHTS, DrainError, Engine, Engines, Lease, Version
from headrace.proxy.problem import RefusedError

V1, V2 = Version("policy", 1), Version("policy", 2)


def fleet(number: int, *, version: Version | None = V1, **limits: Any) -> tuple[Engines, list[Engine]]:
    all_engines = [Engine(f"e{place}", f"http://127.0.0.1:{place}") for place in range(number)]
    engines = Engines(all_engines, **limits)
    for engine in all_engines:
        engines.serve(engine, version)
    return engines, all_engines


class Calls:
    """Calls that are held until the test ends them."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._stacks: dict[Lease, AsyncExitStack] = {}

    async def begin(self, key: str = "a", cut: Callable[[str], None] | None = None) -> Lease:
        stack = AsyncExitStack()
        lease = await stack.enter_async_context(self._engines.acquire(key, cut))
        self._stacks[lease] = stack
        return lease

    async def end(self, *leases: Lease) -> None:
        for lease in leases or tuple(self._stacks):
            await self._stacks.pop(lease).aclose()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("policy@7", Version("policy", 7)),
        ("team@home@0", Version("team@home", 0)),
        ("default", None),
        ("loading policy@7", None),
        ("policy@", None),
        ("policy@-1", None),
        ("policy@1.5", None),
        ("@3", None),
    ],
)
def test_versions_of_ours_are_told_from_others(text: str, version: Version | None) -> None:
    assert Version.of(text) == version
    assert version is None or str(version) == text


def test_the_least_busy_engine_takes_a_new_attempt_and_keeps_its_later_calls() -> None:
    async def test() -> None:
        engines, (first, second, third) = fleet(3)
        calls = Calls(engines)
        homes = [(await calls.begin(key)).engine for key in "abcd"]
        assert homes[:3] == [first, second, third]
        assert [engine.num_calls for engine in engines] == [2, 1, 1]
        assert (await calls.begin("a")).engine is first
        await calls.end()
        assert [(await calls.begin(key)).engine for key in "abcd"] == homes
        await calls.end()

    run(test)


def test_attempts_that_call_one_after_another_are_spread_too() -> None:
    async def test() -> None:
        engines, _ = fleet(2)
        found = []
        for key in "abcd":
            async with engines.acquire(key) as lease:
                found.append(lease.engine.name)
        assert sorted(found) == ["e0", "e0", "e1", "e1"]

    run(test)


def test_an_attempt_whose_engine_is_out_goes_to_another_and_stays_there() -> None:
    async def test() -> None:
        engines, (first, second) = fleet(2)
        calls = Calls(engines)
        assert (await calls.begin("a")).engine is first
        first.suspect()
        assert first.state == "out"
        assert first.attention.is_set()
        assert (await calls.begin("a")).engine is second
        engines.serve(first, V1)
        assert (await calls.begin("a")).engine is second
        await calls.end()
        engines.forget("a")
        engines.forget("a")
        assert not engines._homes

    run(test)


def test_what_is_remembered_of_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.proxy.engines._MAX_STICKY", 3)

    async def test() -> None:
        engines, _ = fleet(2)
        for number in range(50):
            async with engines.acquire(str(number)):
                pass
        assert list(engines._homes) == ["47", "48", "49"]
        assert sum(engines._num_homes.values()) == 3

    run(test)


def test_c15_a_call_keeps_its_version_and_an_update_waits_for_it() -> None:
    async def test() -> None:
        engines, (engine,) = fleet(1)
        calls = Calls(engines)
        running = await calls.begin("a")
        drain = asyncio.create_task(engines.drain(engine, drain_s=60))
        await until(lambda: engine.state == "updating")
        late = asyncio.create_task(calls.begin("b"))
        await until(lambda: engines.num_waiting == 1)
        assert not drain.done()
        with pytest.raises(AssertionError, match=r"has calls of policy@1"):
            engines.serve(engine, V2)
        await calls.end(running)
        await drain
        assert not late.done()
        engines.serve(engine, V2)
        assert running.version == V1
        assert (await late).version == V2
        await calls.end()

    run(test)


def test_while_one_engine_updates_the_others_take_the_calls() -> None:
    async def test() -> None:
        engines, (first, second) = fleet(2)
        await engines.drain(first, drain_s=60)
        async with engines.acquire("a") as one, engines.acquire("b") as other:
            assert one.engine is other.engine is second
        assert engines.describe()[0] == {
            "gap": None,
            "name": "e0",
            "state": "updating",
            "version": "policy@1",
            "calls": 0,
            "reason": "",
        }

    run(test)


def test_an_update_is_not_starved_by_new_calls() -> None:
    async def test() -> None:
        engines, (engine,) = fleet(1)
        num_done = 0

        async def caller(key: str) -> None:
            nonlocal num_done
            while num_done < 400:
                async with engines.acquire(key):
                    await asyncio.sleep(0)
                num_done += 1

        callers = [asyncio.create_task(caller(str(number))) for number in range(8)]
        await until(lambda: num_done > 50)
        await engines.drain(engine, drain_s=60)
        assert num_done < 100
        assert engines.num_waiting == 8
        engines.serve(engine, V2)
        await asyncio.gather(*callers)

    run(test)


def test_calls_that_outlast_the_drain_are_cut() -> None:
    async def test() -> None:
        engines, (engine,) = fleet(1)
        whys: list[str] = []

        async def call() -> None:
            task = asyncio.current_task()
            assert task is not None

            def cut(why: str) -> None:
                whys.append(why)
                task.cancel()

            async with engines.acquire("a", cut):
                await asyncio.Event().wait()

        task = asyncio.create_task(call())
        await until(lambda: engine.num_calls == 1)
        await engines.drain(engine, drain_s=0)
        assert whys == [NEW_WEIGHTS]
        assert engine.state == "updating"
        await asyncio.wait([task])
        assert task.cancelled()

    run(test)


def test_an_engine_whose_calls_do_not_end_keeps_its_weights_and_serves_on() -> None:
    async def test() -> None:
        engines, (engine,) = fleet(1)
        calls = Calls(engines)
        await calls.begin("a")
        drain = asyncio.create_task(engines.drain(engine, drain_s=0, cut_s=0.05))
        await until(lambda: engine.state == "updating")
        waiting = asyncio.create_task(calls.begin("b"))
        with pytest.raises(DrainError, match=r"e0 has 1 calls"):
            await drain
        assert engines.describe()[0]["state"] == "serving"
        assert (await waiting).version == V1
        drain = asyncio.create_task(engines.drain(engine, drain_s=0, cut_s=0.05))
        await until(lambda: engine.state == "updating")
        engine.suspect()
        with pytest.raises(DrainError):
            await drain
        assert engines.describe()[0]["state"] == "out"
        await calls.end()

    run(test)


def test_calls_wait_in_order_for_a_place() -> None:
    async def test() -> None:
        engines, _ = fleet(2, max_calls=1)
        calls = Calls(engines)
        first, second = await calls.begin("a"), await calls.begin("b")
        waiting = [asyncio.create_task(calls.begin(key)) for key in "bca"]
        await until(lambda: engines.num_waiting == 3)
        await calls.end(first)
        assert (await waiting[0]).engine is first.engine
        assert not waiting[1].done()
        await calls.end(second)
        await waiting[1]
        await calls.end()
        assert (await waiting[2]).version == V1
        await calls.end()

    run(test)


def test_a_waiting_call_that_is_cancelled_takes_no_place() -> None:
    async def test() -> None:
        engines, (engine,) = fleet(1, max_calls=1)
        calls = Calls(engines)
        held = await calls.begin("a")
        gone, stays = (asyncio.create_task(calls.begin(key)) for key in "bc")
        await until(lambda: engines.num_waiting == 2)
        gone.cancel()
        await asyncio.wait([gone])
        assert engines.num_waiting == 1
        # This one is given its place, and cancelled before it can know.
        await calls.end(held)
        stays.cancel()
        await asyncio.wait([stays])
        assert stays.cancelled()
        assert engine.num_calls == 0
        assert engines.num_waiting == 0

    run(test)


async def refused(wanted: Awaitable[Lease]) -> tuple[int, str, str]:
    with pytest.raises(RefusedError) as caught:
        await wanted
    problem = caught.value.problem
    assert problem.retry_after_s is not None
    assert problem.retry_after_s >= 1
    return problem.status, problem.code, problem.message


def test_full_engines_and_a_full_queue_are_429() -> None:
    async def test() -> None:
        engines, _ = fleet(1, max_calls=1, max_waiting=1)
        calls = Calls(engines)
        await calls.begin("a")
        waiting = asyncio.create_task(calls.begin("b"))
        await until(lambda: engines.num_waiting == 1)
        assert (await refused(calls.begin("c")))[:2] == (429, "engines_busy")
        await calls.end()
        await waiting
        await calls.end()

    run(test)


def test_a_place_that_does_not_come_in_time_is_429() -> None:
    async def test() -> None:
        engines, _ = fleet(1, max_calls=1, wait_s=0.01)
        calls = Calls(engines)
        await calls.begin("a")
        assert (await refused(calls.begin("b")))[:2] == (429, "engines_busy")
        assert engines.num_waiting == 0
        await calls.end()

    run(test)


def test_where_no_engine_serves_in_time_it_is_503_and_says_how_they_stand() -> None:
    async def test() -> None:
        engines, (first, second) = fleet(2, wait_s=0.01)
        engines.take_out(first, "it answered with /secret/path")
        await engines.drain(second, drain_s=1)
        status, code, message = await refused(Calls(engines).begin("a"))
        assert (status, code) == (503, "no_engine")
        assert message == "no engine is serving: e0 is out, e1 is updating"
        assert (await refused(Calls(Engines([], wait_s=0)).begin("a")))[2].endswith("there are none")

    run(test)


def test_an_engine_that_is_not_managed_serves_without_a_version() -> None:
    async def test() -> None:
        engine = Engine("other", "http://127.0.0.1:1", is_managed=False)
        engines = Engines([engine])
        engine.suspect()
        async with engines.acquire("a") as lease:
            assert lease.version is None

    run(test)


class Bustle:
    """Callers and updaters that take their steps at random."""

    def __init__(self, seed: int, num_engines: int, max_calls: int) -> None:
        self.dice = random.Random(seed)
        self.engines, self.all = fleet(num_engines, max_calls=max_calls, max_waiting=100)
        self.num_served = 0
        self._max_calls = max_calls

    async def call(self) -> None:
        async with self.engines.acquire(str(self.dice.randrange(8)), lambda _: None) as lease:
            for _ in range(self.dice.randrange(6)):
                await asyncio.sleep(0)
                assert lease.engine.version == lease.version
                assert lease.engine.num_calls <= self._max_calls
        self.num_served += 1

    async def update(self, engine: Engine) -> None:
        for number in range(2, 6):
            for _ in range(self.dice.randrange(20)):
                await asyncio.sleep(0)
            if self.dice.random() < 0.3:
                engine.suspect()
            await self.engines.drain(engine, drain_s=60)
            self.engines.serve(engine, Version("policy", number))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), num_engines=st.integers(1, 3), max_calls=st.integers(1, 3))
def test_g9_no_call_ever_sees_another_version_and_no_place_is_lost(
    seed: int, num_engines: int, max_calls: int
) -> None:
    async def test() -> None:
        bustle = Bustle(seed, num_engines, max_calls)
        dice = bustle.dice
        updates = [asyncio.create_task(bustle.update(engine)) for engine in bustle.all]
        callers = []
        for _ in range(60):
            callers.append(asyncio.create_task(bustle.call()))
            if dice.random() < 0.2:
                dice.choice(callers).cancel()
            if dice.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.gather(*updates)
        done = await asyncio.gather(*callers, return_exceptions=True)
        assert {type(result) for result in done} <= {type(None), asyncio.CancelledError}
        assert bustle.num_served == sum(result is None for result in done)
        assert bustle.engines.num_waiting == 0
        assert [engine.num_calls for engine in bustle.all] == [0] * num_engines

    run(test)
