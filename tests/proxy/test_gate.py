"""Who may do what where the proxy has keys: a key everything, a token what is of its attempt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.proxy.harness import Proxy, a_proxy, upstream_url

from headrace.proxy import gate as gate_module
from headrace.proxy.gate import Gate
from headrace.proxy.keys import KeyRing, add_key, revoke_key
from headrace.proxy.problem import RefusedError
from headrace.schemas.ids import uuid7

__all__ = ["upstream_url"]

PATHS = (
    "/a/{}/v1/chat/completions",
    "/a/{}/v1/completions",
    "/a/{}/v1/messages",
    "/a/{}/v1/responses",
    "/a/{}/v1/messages/count_tokens",
    "/a/{}/v1/traces",
    "/a/{}/rewards",
    "/attempts/{}/next",
    "/attempts/{}/close",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@asynccontextmanager
async def guarded(upstream: str, path: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy and its key."""
    key = add_key(path, "one")
    async with a_proxy(upstream, keys=KeyRing(path)) as proxy:
        yield proxy, key


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def chat(proxy: Proxy, path: str, headers: dict[str, str]) -> httpx.Response:
    body = {"model": "fake", "messages": [], "max_tokens": 2}
    return await proxy.client.post(f"{path}/v1/chat/completions", json=body, headers=headers)


async def test_a_key_opens_and_a_token_does_not(upstream_url: str, path: Path) -> None:
    async with guarded(upstream_url, path) as (proxy, key):
        proxy.open()
        for headers in ({}, bearer("x"), bearer(proxy.token), {"authorization": f"Basic {key}"}):
            body = {"rollout_id": uuid7(), "attempt_id": uuid7()}
            answer = await proxy.client.post("/attempts", json=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        for headers in (bearer(key), {"x-api-key": key}, {"authorization": f"bearer {key}"}):
            body = {"rollout_id": uuid7(), "attempt_id": uuid7()}
            assert (await proxy.client.post("/attempts", json=body, headers=headers)).status_code == 201


async def test_a_token_is_for_its_attempt(upstream_url: str, path: Path) -> None:
    async with guarded(upstream_url, path) as (proxy, key):
        first = proxy.open()
        token = proxy.token
        second = proxy.open()
        for headers in (bearer(token), {"x-api-key": token}, bearer(key)):
            assert (await chat(proxy, first, headers)).status_code == 200
        for headers in ({}, bearer(proxy.token), bearer(token[:-1])):
            assert (await chat(proxy, first, headers)).status_code == 401
        assert (await chat(proxy, second, bearer(token))).status_code == 401
        assert [span.attempt_id for span in proxy.spans()] == [first[3:]] * 3


@pytest.mark.parametrize("target", PATHS)
async def test_strangers_do_not_learn_which_attempts_there_are(
    upstream_url: str, path: Path, target: str
) -> None:
    async with guarded(upstream_url, path) as (proxy, key):
        is_open, is_closed, token = proxy.open()[3:], proxy.open()[3:], proxy.token
        await proxy.client.post(f"/attempts/{is_closed}/close", headers=bearer(key))
        seen = set()
        for attempt_id in (is_open, is_closed, uuid7(), "x"):
            for headers in ({}, bearer("x"), bearer(token)):
                answer = await proxy.client.post(target.format(attempt_id), headers=headers, json={})
                seen.add((answer.status_code, answer.content, tuple(sorted(answer.headers.items()))))
        assert {status for status, *_ in seen} == {401}
        assert len(seen) == 1
        assert len(proxy.attempts) == 1


async def test_whoever_has_a_key_is_told(upstream_url: str, path: Path) -> None:
    async with guarded(upstream_url, path) as (proxy, key):
        attempt = proxy.open()
        await proxy.client.post(f"/attempts/{attempt[3:]}/close", headers=bearer(key))
        assert (await chat(proxy, attempt, bearer(key))).status_code == 410
        assert (await chat(proxy, f"/a/{uuid7()}", bearer(key))).status_code == 404


async def test_a_revoked_key_ends_while_the_proxy_runs(
    upstream_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_REFRESH_S", 0.005)
    key, other = add_key(path, "one"), add_key(path, "other")
    async with a_proxy(upstream_url) as proxy:
        gate = Gate(proxy.attempts, KeyRing(path))
        refreshing = asyncio.create_task(gate.refresh())
        gate.check_key(key)
        revoke_key(path, "one")

        def is_refused(secret: str) -> bool:
            try:
                gate.check_key(secret)
            except RefusedError:
                return True
            return False

        async with asyncio.timeout(10):
            while not is_refused(key):  # noqa: ASYNC110  the file's time decides
                await asyncio.sleep(0.005)
        # A file that can't be read changes nothing, and is read again.
        path.write_text("{")  # noqa: ASYNC240  a few bytes
        await asyncio.sleep(0.02)
        assert not refreshing.done()
        assert not is_refused(other)
        refreshing.cancel()
        await asyncio.gather(refreshing, return_exceptions=True)
