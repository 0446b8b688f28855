"""Engines are found out about by what they answer, each in its own time; an error says nothing about one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.proxy.fake_admin import FakeVersions
from tests.proxy.harness import until

from headrace.proxy import fleet as fleet_module
from headrace.proxy.fleet import Fleet, base_urls, start_engines
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream
from headrace.schemas.errors import FatalError

Answer = tuple[int, Any]

ABSENT = "http://127.0.0.1:9"
LISTED = {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "parent": None}]}
FOREIGN = {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]}
NOT_THERE: Answer = (404, {})
DEFAULT: Answer = (200, {"weight_version": "default"})


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_ASK_EVERY_S", 0.001)


class Server:
    """Answers what it is told to, by path; completions as an engine whose logprobs count biases."""

    def __init__(self, weight_info: Any, models: Any) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/weight_info": weight_info, "/v1/models": models}
        self.can_generate = True
        self.num_probes = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        async with TestServer(app) as server:
            self.url = str(server.make_url("")).rstrip("/")
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/completions":
            return await self._complete(request)
        status, body = self.answers.get(request.path, (404, {}))
        return web.json_response(body, status=status)

    async def _complete(self, request: web.Request) -> web.Response:
        self.num_probes += 1
        if not self.can_generate:
            return web.json_response({}, status=503)
        is_biased = "logit_bias" in await request.json()
        logprobs = {"token_logprobs": [-1e-6 if is_biased else -2.5]}
        return web.json_response({"choices": [{"token_ids": [17], "logprobs": logprobs}]})


@asynccontextmanager
async def a_fleet(*urls: str, **settings: Any) -> AsyncIterator[Fleet]:
    known = ProxySettings(upstreams=urls, **settings)
    async with Upstream(known) as upstream, start_engines(known, upstream, FakeVersions()) as made:
        yield made


@pytest.mark.parametrize(
    ("weight_info", "models", "expected"),
    [
        pytest.param(DEFAULT, (200, LISTED), (True, True), id="vLLM that takes weights"),
        pytest.param(NOT_THERE, (200, LISTED), (False, True), id="vLLM"),
        pytest.param((200, {}), (200, LISTED), (False, True), id="another weight_info"),
        pytest.param(NOT_THERE, (200, FOREIGN), (False, False), id="another"),
    ],
)
async def test_what_an_engine_is(weight_info: Any, models: Any, expected: tuple[bool, bool]) -> None:
    async with Server(weight_info, models).running() as server, a_fleet(server.url) as fleet:
        (engine,) = fleet.engines
        await until(lambda: engine.state == "serving")
        assert (engine.is_managed, engine.gives_token_ids) == expected
        assert engine.distrust is None


@pytest.mark.parametrize(
    ("weight_info", "models", "reason"),
    [
        pytest.param((503, {}), (503, {}), "it answered /weight_info with 503", id="loading"),
        pytest.param((401, {}), (401, {}), "is HEADRACE_PROXY_UPSTREAM_API_KEY right?", id="a wrong key"),
        pytest.param((429, {}), (200, LISTED), "with 429", id="busy"),
        pytest.param(NOT_THERE, (503, {}), "it answered /v1/models with 503", id="no models yet"),
        pytest.param(NOT_THERE, NOT_THERE, "--upstream-kind says what it is", id="nothing there"),
        pytest.param(NOT_THERE, (200, "starting"), "no list of models", id="no list"),
    ],
)
async def test_an_error_says_nothing_of_what_it_is(weight_info: Any, models: Any, reason: str) -> None:
    """It is asked until it says so: an engine taken for another would be that for the process's life."""
    async with Server(weight_info, models).running() as server, a_fleet(server.url) as fleet:
        (engine,) = fleet.engines
        await until(lambda: engine.state == "out")
        assert reason in engine.reason
        server.answers |= {"/weight_info": DEFAULT, "/v1/models": (200, LISTED)}
        await until(lambda: engine.state == "serving")
        assert engine.is_managed
        assert engine.reason == ""


async def test_one_that_does_not_answer_holds_up_nobody() -> None:
    async with Server(DEFAULT, (200, LISTED)).running() as server, a_fleet(ABSENT, server.url) as fleet:
        dead, alive = fleet.engines
        await until(lambda: alive.state == "serving" and dead.state == "out")
        assert dead.reason == "the upstream can't be reached"
        assert not dead.is_managed
        async with fleet.engines.acquire("a") as lease:
            assert lease.engine is alive


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_a_kind_that_is_told(kind: str) -> None:
    """Models are not asked for it, and of the one no more than the other can do."""
    async with (
        Server(NOT_THERE, (200, FOREIGN)).running() as server,
        a_fleet(server.url, upstream_kind=kind) as fleet,
    ):
        (engine,) = fleet.engines
        await until(lambda: engine.state == "serving")
        assert (engine.is_managed, engine.gives_token_ids) == (False, kind == "vllm")


@pytest.mark.parametrize(
    ("models", "settings", "is_told"),
    [
        pytest.param(FOREIGN, {}, True, id="another"),
        pytest.param(LISTED, {}, True, id="vLLM without the endpoints"),
        pytest.param(FOREIGN, {"weights": None}, False, id="no weights wanted"),
        pytest.param(FOREIGN, {"upstream_kind": "openai"}, False, id="meant so"),
    ],
)
async def test_weights_that_reach_no_engine_are_told_of(
    models: Any,
    settings: dict[str, Any],
    is_told: bool,  # noqa: FBT001
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with Server(NOT_THERE, (200, models)).running() as server, a_fleet(server.url, **settings) as fleet:
        (engine,) = fleet.engines
        await until(lambda: engine.state == "serving")
    out, err = capfd.readouterr()
    assert ("new weights do not reach this upstream" in out + err) == is_told


async def test_an_engine_whose_logprobs_nobody_could_look_at_is_asked_again() -> None:
    """It serves meanwhile, and its calls are untrainable."""
    server = Server(NOT_THERE, (200, LISTED))
    server.can_generate = False
    async with server.running(), a_fleet(server.url) as fleet:
        (engine,) = fleet.engines
        await until(lambda: engine.state == "serving" and server.num_probes > 2)
        assert engine.distrust == "logprobs_unknown"
        server.can_generate = True
        await until(lambda: engine.distrust is None)
        assert engine.gives_sampled_logprobs


async def test_leaving_waits_for_no_engine() -> None:
    async with asyncio.timeout(10), a_fleet(ABSENT) as fleet:
        assert [engine.state for engine in fleet.engines] == ["starting"]


@pytest.mark.parametrize(
    ("upstreams", "why"),
    [
        pytest.param((ABSENT, f"{ABSENT}/v1/"), "an upstream is given twice", id="twice"),
        pytest.param(("127.0.0.1:8000",), "'127.0.0.1:8000' is no URL of an engine", id="no URL"),
        pytest.param(("http://host:x",), "is no URL of an engine", id="no port"),
        pytest.param((f"{ABSENT}?key=SECRET",), "upstream 1 is no URL", id="with a query"),
        pytest.param((ABSENT, f"{ABSENT}#SECRET"), "upstream 2 is no URL", id="with a fragment"),
        pytest.param(("http://me:SECRET@host",), "HEADRACE_PROXY_UPSTREAM_API_KEY takes", id="a password"),
        pytest.param(("http://SECRET@host:1",), "HEADRACE_PROXY_UPSTREAM_API_KEY takes", id="a name"),
        pytest.param(("http://me:SE?CRET@host",), "upstream 1 is no URL", id="an odd password"),
        pytest.param(("me:SECRET@host",), "upstream 1 is no URL", id="a password without a scheme"),
    ],
)
def test_upstreams_that_are_none(upstreams: tuple[str, ...], why: str) -> None:
    """What is refused is not quoted: it may have a secret in it."""
    with pytest.raises(FatalError) as refused:
        base_urls(ProxySettings(upstreams=upstreams))
    assert why in str(refused.value)
    assert "CRET" not in str(refused.value)


def test_urls_with_and_without_v1() -> None:
    given = ("http://a:1/v1", "http://b:1/", "https://c/engine/v1/", "http://[::1]:8000")
    assert base_urls(ProxySettings(upstreams=given)) == [
        "http://a:1", "http://b:1", "https://c/engine", "http://[::1]:8000",
    ]  # fmt: skip
