"""A proxy in the test's own loop, with records in memory or wherever the outlet puts them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.proxy.fake_vllm import fake_vllm
from tests.streams.runner.twins import MemoryOutlet

from headrace.proxy.app import application
from headrace.proxy.attempts import Attempts
from headrace.proxy.call import Parts
from headrace.proxy.engines import Engine, Engines, Version
from headrace.proxy.gate import Gate
from headrace.proxy.keys import KeyRing
from headrace.proxy.metrics import ProxyMetrics
from headrace.proxy.recorder import Recorder
from headrace.proxy.server import listen, serve, server
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream
from headrace.schemas.ids import uuid7
from headrace.schemas.records import Span
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outlet import Outlet

VERSION = Version("policy", 7)


class Proxy:
    """What a test has in hand of it."""

    def __init__(
        self, url: str, client: httpx.AsyncClient, attempts: Attempts, parts: Parts, outlet: Any
    ) -> None:
        self.url = url
        self.client = client
        self.attempts = attempts
        self.parts = parts
        self.outlet = outlet
        self.num_connections: Callable[[], int]

    def open(self, agent: str = "") -> str:
        """The path of an attempt's URL."""
        attempt_id = uuid7()
        self.token = self.attempts.open(uuid7(), attempt_id, agent)
        return f"/a/{attempt_id}"

    async def chat(self, path: str, **members: Any) -> httpx.Response:
        body = {
            "model": "fake",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
            **members,
        }
        return await self.client.post(f"{path}/v1/chat/completions", json=body)

    async def close(self, path: str) -> dict[str, Any]:
        response = await self.client.post(f"/attempts/{path[3:]}/close")
        closed: dict[str, Any] = response.json()
        return closed

    def spans(self) -> list[Span]:
        """In the order of their ids."""
        found: Sequence[Span] = self.outlet.of(Span)
        return sorted(found, key=lambda span: span.sequence_id or 0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  many things make it true
            await asyncio.sleep(0.001)


async def let_others_run() -> None:
    """Whatever is ready to happen in this loop has happened."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def upstream_url() -> Iterator[str]:
    with fake_vllm() as url:
        yield url


@asynccontextmanager
async def a_proxy(
    upstream: str,
    outlet: Outlet | None = None,
    keys: KeyRing | None = None,
    *,
    is_managed: bool = True,
    **settings: Any,
) -> AsyncIterator[Proxy]:
    known = ProxySettings(upstreams=(upstream,), **settings)
    records = outlet or MemoryOutlet()
    mailbox = Mailbox(asyncio.get_running_loop())
    engine = Engine("engine-0", upstream, is_managed=is_managed)
    engines = Engines([engine], max_calls=known.max_engine_calls, wait_s=known.admission_timeout_s)
    engine.gives_sampled_logprobs = is_managed or None
    engines.serve(engine, VERSION if is_managed else None)
    attempts = Attempts(known, records, mailbox)
    recorder = Recorder(records, mailbox, late_s=known.late_s)
    async with Upstream(known) as client:
        parts = Parts(known, engines, client, recorder, ProxyMetrics())
        running = server(
            application(parts, attempts, Gate(attempts, keys)),
            max_header_bytes=known.max_header_bytes,
            head_timeout_s=known.head_timeout_s,
            stop_timeout_s=1,
        )
        stop = asyncio.Event()
        with listen("127.0.0.1", 0) as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            serving = asyncio.create_task(serve(running, listening, stop))
            await until(lambda: running.started)
            async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
                made = Proxy(url, http, attempts, parts, records)
                made.num_connections = lambda: len(running.server_state.connections)
                yield made
            stop.set()
            await serving
        await recorder.close()
        await attempts.close_all(5)
