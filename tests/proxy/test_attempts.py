"""Attempts: opened once, one dense sequence of ids whoever asks, and an end that is the same for all (G2)."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.proxy.connection import connected, request
from tests.proxy.harness import Proxy, a_proxy, until, upstream_url
from tests.streams.runner.twins import MemoryOutlet

from headrace.proxy.attempts import Attempts
from headrace.proxy.settings import ProxySettings
from headrace.schemas.ids import uuid7
from headrace.streams.runner.attempt_log import LoggedEvent
from headrace.streams.runner.mailbox import Mailbox

__all__ = ["upstream_url"]


def a_body(**members: Any) -> dict[str, Any]:
    return {"rollout_id": uuid7(), "attempt_id": uuid7(), **members}


async def next_of(proxy: Proxy, path: str) -> int:
    answer = await proxy.client.post(f"/attempts/{path[3:]}/next")
    assert answer.status_code == 200
    sequence_id: int = answer.json()["sequence_id"]
    return sequence_id


async def test_from_its_opening_to_its_end(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        body = a_body(attempt=2, agent="solver")
        opened = await proxy.client.post("/attempts", json=body)
        assert opened.status_code == 201
        assert opened.json().keys() == {"attempt_id", "path", "token"}
        path = opened.json()["path"]
        assert path == f"/a/{body['attempt_id']}"
        assert proxy.attempts.rollouts == {body["rollout_id"].encode(): {body["attempt_id"]}}
        assert [await next_of(proxy, path) for _ in range(2)] == [1, 2]
        await proxy.chat(path)
        assert await next_of(proxy, path) == 4
        ended = {"last_sequence_id": 4, "failure": None}
        assert [await proxy.close(path) for _ in range(3)] == [ended] * 3
        assert (len(proxy.attempts), proxy.attempts.rollouts) == (0, {})
        for answer in (await proxy.client.post(f"/attempts/{path[3:]}/next"), await proxy.chat(path)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "attempt_ended")
        again = await proxy.client.post("/attempts", json=body)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "attempt_known")
        assert [span.sequence_id for span in proxy.spans()] == [3]


async def test_one_that_is_open_is_not_opened_again(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        body = a_body()
        answers = [await proxy.client.post("/attempts", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 409]


async def test_one_that_was_never_opened(upstream_url: str) -> None:
    """A proxy that was restarted knows nothing of those before."""
    async with a_proxy(upstream_url) as proxy:
        for path in (f"/attempts/{uuid7()}/next", f"/attempts/{uuid7()}/close"):
            answer = await proxy.client.post(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "attempt_unknown")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param([], id="no object"),
        pytest.param(a_body(attempt_id="x"), id="no UUID"),
        pytest.param(a_body(rollout_id="6f1c7bd2-4b0c-4d2a-9b57-0a3f6e1c2d3e"), id="UUIDv4"),
        pytest.param(a_body(attempt=0), id="attempt 0"),
        pytest.param(a_body(upstream="http://evil.example"), id="an upstream"),
        pytest.param(a_body(agent="a" * 201), id="a long name"),
    ],
)
async def test_what_opens_none(upstream_url: str, body: Any) -> None:
    async with a_proxy(upstream_url) as proxy:
        answer = await proxy.client.post("/attempts", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
        assert len(proxy.attempts) == 0


async def test_too_many_at_a_time(upstream_url: str) -> None:
    async with a_proxy(upstream_url, max_attempts=1) as proxy:
        path = proxy.open()
        refused = await proxy.client.post("/attempts", json=a_body())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        await proxy.close(path)
        assert (await proxy.client.post("/attempts", json=a_body())).status_code == 201


async def test_ids_are_dense_whoever_asks(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        kinds = ("none", "http_500", "no_choices", "dies")
        calls = [
            proxy.chat(path, n=number % 3 + 1, stream=number % 2 == 1, fault={"kind": kinds[number % 4]})
            for number in range(40)
        ]
        given = [next_of(proxy, path) for _ in range(40)]
        _, taken = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*given))
        closed = await proxy.close(path)
        ids = [span.sequence_id or 0 for span in proxy.spans()] + taken
        assert sorted(ids) == list(range(1, closed["last_sequence_id"] + 1))
        assert closed["failure"] is None


async def test_an_end_waits_for_kafka_and_is_told_later(upstream_url: str) -> None:
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, close_timeout_s=0.05, late_s=60) as proxy:
        path = proxy.open()
        call = asyncio.ensure_future(proxy.chat(path))
        await until(lambda: bool(outlet.records))
        answer = await proxy.client.post(f"/attempts/{path[3:]}/close")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        outlet.settle()
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}
        # Its answer was there before the end.
        assert (await call).status_code == 200


async def test_nothing_begins_while_it_closes(upstream_url: str) -> None:
    """A request that was half there would be cut by nobody, and share its ids with voids."""
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=60) as proxy, connected(proxy.url) as connection:
        path = proxy.open()
        attempt = proxy.attempts.get(path[3:])
        body = orjson.dumps({"model": "fake", "messages": [], "max_tokens": 4})
        whole = request(f"{path}/v1/chat/completions", body)
        await connection.send(whole[:-1])
        cut = asyncio.ensure_future(proxy.chat(path, fault={"kind": "hangs"}))
        await until(lambda: attempt.num_calls == 1)
        closing = asyncio.ensure_future(proxy.close(path))
        await until(lambda: bool(outlet.records))
        await connection.send(whole[-1:])
        late = await connection.answer()
        assert (late.status, late.code) == (410, "attempt_ended")
        outlet.settle()
        assert await closing == {"last_sequence_id": 1, "failure": None}
        assert (await cut).status_code == 410
        assert [span.sequence_id for span in proxy.spans()] == [1]


# --- without a server ------------------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_one_that_nobody_uses_is_closed() -> None:
    clock, ended = Clock(), list[str]()
    mailbox = Mailbox(asyncio.get_running_loop())
    attempts = Attempts(ProxySettings(idle_attempt_s=100), MemoryOutlet(), mailbox, clock, ended.append)
    used, unused = uuid7(), uuid7()
    for attempt_id in (used, unused):
        attempts.open(uuid7(), attempt_id)
    clock.now_s = 60
    attempts.get(used).next()
    clock.now_s = 120
    assert attempts.close_idle() == 1
    await until(lambda: len(attempts) == 1)
    assert ended == [unused]
    assert (await attempts.close(unused)).last_sequence_id == 0
    assert (await attempts.close(used)).last_sequence_id == 1


async def test_what_the_log_says_has_ended_goes_no_further() -> None:
    """Its runner may be dead, and the dispatcher has given it up."""
    mailbox = Mailbox(asyncio.get_running_loop())
    attempts = Attempts(ProxySettings(), MemoryOutlet(), mailbox)
    rollout_id, ended, other = uuid7(), uuid7(), uuid7()
    for attempt_id in (ended, other):
        attempts.open(rollout_id, attempt_id)

    def event(attempt_id: str, kind: str) -> LoggedEvent:
        return LoggedEvent(rollout_id, attempt_id, 1, kind, "unresponsive", None, True, False)

    attempts.hear([event(ended, "ended"), event(other, "heartbeat"), event(uuid7(), "ended")])
    await until(lambda: len(attempts) == 1)
    assert attempts.rollouts == {rollout_id.encode(): {other}}
    assert await attempts.close_all(5) == {}
    assert attempts.rollouts == {}
