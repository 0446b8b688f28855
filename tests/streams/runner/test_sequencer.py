"""G2: one place hands out an attempt's ids, here or in the proxy."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr
from tests.builders import an_id
from tests.streams.runner.fake_proxy import KEY, a_fake_proxy
from tests.streams.runner.twins import a_task

from headrace.streams.runner.proxy_client import ProxyClient
from headrace.streams.runner.proxy_sequencer import RemoteSequencer
from headrace.streams.runner.sequencer import Closed, LocalSequencer, Sequencer

Scene = Callable[[Callable[[], Sequencer]], Awaitable[None]]


@asynccontextmanager
async def local() -> AsyncIterator[Callable[[], Sequencer]]:
    yield LocalSequencer


@asynccontextmanager
async def remote() -> AsyncIterator[Callable[[], Sequencer]]:
    with a_fake_proxy() as proxy:
        async with ProxyClient(proxy.url, SecretStr(KEY), timeout_s=5) as client:
            yield lambda: RemoteSequencer(client)


@pytest.fixture(params=[local, remote])
def play(request: pytest.FixtureRequest) -> Callable[[Scene], None]:
    def play(scene: Scene) -> None:
        async def main() -> None:
            async with request.param() as make:
                await scene(make)

        asyncio.run(main())

    return play


def test_ids_count_from_one(play: Callable[[Scene], None]) -> None:
    async def scene(make: Callable[[], Sequencer]) -> None:
        first, second = make(), make()
        await first.open(a_task("a"), an_id("a"))
        await second.open(a_task("b"), an_id("b"))
        assert first.last == 0
        assert [first.next() for _ in range(3)] == [1, 2, 3]
        assert second.next() == 1
        assert (first.last, second.last) == (3, 1)
        assert await first.close() == Closed(3)
        assert await second.close() == Closed(1)
        assert (first.failure, second.failure) == (None, None)

    play(scene)


def test_what_was_never_open_has_handed_out_nothing(play: Callable[[Scene], None]) -> None:
    async def scene(make: Callable[[], Sequencer]) -> None:
        assert await make().close() == Closed(0)

    play(scene)


def test_no_two_threads_get_the_same_id(play: Callable[[Scene], None]) -> None:
    async def scene(make: Callable[[], Sequencer]) -> None:
        sequencer = make()
        await sequencer.open(a_task(), an_id("a"))
        given: list[int] = []
        start = threading.Barrier(8)

        def take() -> None:
            start.wait()
            given.extend([sequencer.next() for _ in range(50)])

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(given) == list(range(1, 401))
        assert sequencer.last == 400
        assert await sequencer.close() == Closed(400)

    play(scene)
