"""What is sent to an engine's own endpoints, and what its answers are taken for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.proxy.loops import run

from headrace.proxy.vllm_admin import EngineError, VllmAdmin, admin_session


@asynccontextmanager
async def answering(status: int, body: bytes, *, hangs: bool = False) -> AsyncIterator[VllmAdmin]:
    """An engine that answers everything so, or nothing."""

    async def answer(_: web.Request) -> web.Response:
        if hangs:
            await asyncio.Event().wait()
        return web.Response(status=status, body=body)

    async with answered_by(answer, timeout_s=0.2 if hangs else 5) as admin:
        yield admin


@asynccontextmanager
async def answered_by(
    answer: Callable[[web.Request], Awaitable[web.Response]], timeout_s: float = 5
) -> AsyncIterator[VllmAdmin]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with admin_session() as session:
            port = runner.addresses[0][1]
            yield VllmAdmin("e0", f"http://127.0.0.1:{port}", session, timeout_s=timeout_s)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b'{"error": {"message": "it\\n broke"}}', r"^e0 answered /weight_info with 500: it broke$"),
        (404, b'{"detail": "Not Found"}', r"with 404: Not Found$"),
        (503, b"busy", r"with 503: busy$"),
        (500, b"x" * 5000, r"with 500: x{300} …$"),
        (302, b"", r"with 302"),
        (200, b"<html>", r"with what is no JSON"),
    ],
)
def test_an_engines_words_are_in_the_error_within_bounds(status: int, body: bytes, message: str) -> None:
    async def test() -> None:
        async with answering(status, body) as engine:
            with pytest.raises(EngineError, match=message):
                await engine.weight_version()

    run(test)


def test_an_engine_that_is_not_there_or_does_not_answer() -> None:
    async def test() -> None:
        async with answering(200, b"{}", hangs=True) as engine:
            with pytest.raises(EngineError, match="e0 did not answer /pause in time"):
                await engine.pause()
        async with admin_session() as session:
            gone = VllmAdmin("e0", engine._url, session)
            with pytest.raises(EngineError, match="e0 can't be reached for /resume: ClientConnectorError"):
                await gone.resume()

    run(test)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"data": [{"id": "m"}]}', "generated nothing"),
        (
            b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [null]}}]}',
            "no finite logprobs",
        ),
        (b'{"choices": [{"logprobs": {"token_logprobs": []}}]}', "generated nothing"),
    ],
)
def test_a_probe_that_shows_nothing_fails(body: bytes, message: str) -> None:
    async def test() -> None:
        async with answering(200, body) as engine:
            with pytest.raises(EngineError, match=message):
                await engine.probe()

    run(test)


@pytest.mark.parametrize(
    ("logprobs", "sampled"),
    [
        pytest.param((-2.5, -2.5), False, id="a bias that does not count"),
        pytest.param((-2.5, -1e-6), True, id="a bias that counts"),
        pytest.param((-1e-6, -1e-6), True, id="certain anyhow"),
    ],
)
def test_logprobs_are_of_what_is_sampled_if_a_bias_counts(
    logprobs: tuple[float, float],
    sampled: bool,  # noqa: FBT001
) -> None:
    biases: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"data": [{"id": "m"}]})
        biases.append((await request.json()).get("logit_bias"))
        choice = {"token_ids": [17], "logprobs": {"token_logprobs": [logprobs[len(biases) - 1]]}}
        return web.json_response({"choices": [choice]})

    async def test() -> None:
        async with answered_by(answer) as engine:
            assert await engine.gives_sampled_logprobs() is sampled

    run(test)
    assert biases == [None, {"17": 100}]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"choices": [{"prompt_logprobs": null}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"8": {"logprob": -1}}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, {"9": {"logprob": -1}}, {"9": {"logprob": -1}}]}]}',
    ],
    ids=["nothing", "none", "of another token", "too many"],
)
def test_an_engine_that_does_not_say_what_it_computes(body: bytes) -> None:
    async def test() -> None:
        async with answering(200, body) as engine:
            with pytest.raises(EngineError, match="e0 does not say what it computes for a prompt"):
                await engine.logprobs_of([7, 9])

    run(test)


def test_adapters_are_not_the_model_itself() -> None:
    listed = [{"id": "base"}, {"id": "alias", "parent": None}, {"id": "lora", "parent": "base"}, {}]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"data": listed})

    async def test() -> None:
        async with answered_by(answer) as engine:
            assert await engine.base_models() == {"base", "alias"}

    run(test)
