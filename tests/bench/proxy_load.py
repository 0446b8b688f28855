"""Load for a proxy, from a process of its own: each caller makes its next call when it has the last answer.

`python -m tests.bench.proxy_load` takes one JSON `Work` a line and answers each with one JSON `Done`.
It writes requests that are made beforehand, and looks into no answer: it is to cost the proxies little.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

LIMIT_S = 300.0


@dataclass(frozen=True)
class Place:
    """Where a call goes, and what it may."""

    path: str
    token: str


@dataclass(frozen=True)
class Work:
    """Calls to one server."""

    url: str
    callers: Sequence[Sequence[Place]]
    """Each has a connection, and takes its places in turn."""
    body: dict[str, Any]
    num_calls: int
    num_warm_up: int
    """Calls before, over the same connections, that do not count."""

    @classmethod
    def of(cls, line: bytes) -> Self:
        known = orjson.loads(line)
        known["callers"] = [[Place(**place) for place in caller] for caller in known["callers"]]
        return cls(**known)


@dataclass(frozen=True)
class Done:
    """What became of it."""

    latencies_s: Sequence[float]
    """From a request's first byte to its answer's last."""
    took_s: float
    cpu_s: float
    """Of this process."""

    @property
    def calls_per_s(self) -> float:
        return len(self.latencies_s) / self.took_s


class CallError(Exception):
    """An answer was not 200, or did not come."""


class _Calls:
    """How many are left, and how long each took."""

    def __init__(self, num_calls: int, num_callers: int) -> None:
        self._left = num_calls
        self._num_running = num_callers
        self.latencies_s: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bool:
        if self._left:
            self._left -= 1
            return True
        self._num_running -= 1
        if not self._num_running and not self.ended.done():
            self.ended.set_result(None)
        return False

    def fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(CallError(why))


class _Caller(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._calls: _Calls | None = None
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        if self._calls is not None:
            self._calls.fail("the server closed a connection")

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        assert self._calls is not None
        self._calls.latencies_s.append(time.perf_counter() - self._began)
        status = self._parser.get_status_code()
        if status == 200:
            self.call(self._calls)
        else:
            self._calls.fail(f"a call was answered with {status}")

    def call(self, calls: _Calls) -> None:
        """Again and again, while there are calls left."""
        self._calls = calls
        assert self._transport is not None
        if calls.take():
            request = next(self._requests)
            self._began = time.perf_counter()
            self._transport.write(request)

    def close(self) -> None:
        self._calls = None
        assert self._transport is not None
        self._transport.close()


async def work(task: Work) -> Done:
    """Do it. CallError if a call fails."""
    loop, url, body = asyncio.get_running_loop(), urlsplit(task.url), orjson.dumps(task.body)
    host, port = str(url.hostname), url.port or 80
    callers: list[_Caller] = []
    try:
        for places in task.callers:
            requests = cycle([_request(url.netloc, place, body) for place in places])
            caller = _Caller(requests)
            await loop.create_connection(lambda caller=caller: caller, host, port)  # type: ignore[misc]
            callers.append(caller)
        if task.num_warm_up:
            await _run(callers, task.num_warm_up)
        began, cpu = time.perf_counter(), time.process_time()
        latencies_s = await _run(callers, task.num_calls)
        return Done(latencies_s, time.perf_counter() - began, time.process_time() - cpu)
    finally:
        for caller in callers:
            caller.close()


async def _run(callers: Sequence[_Caller], num_calls: int) -> list[float]:
    calls = _Calls(num_calls, len(callers))
    for caller in callers:
        caller.call(calls)
    async with asyncio.timeout(LIMIT_S):
        await calls.ended
    return calls.latencies_s


def _request(host: str, place: Place, body: bytes) -> bytes:
    head = (
        f"POST {place.path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {place.token}\r\n"
        f"content-type: application/json\r\naccept: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin.buffer:
            print(orjson.dumps(asdict(runner.run(work(Work.of(line))))).decode(), flush=True)


if __name__ == "__main__":
    main()
