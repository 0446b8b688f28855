"""A call of a model, from end to end: what is recorded, what the client gets, and in which order."""

import asyncio
from typing import Any

import orjson
import pytest
from tests.proxy.fake_vllm import said
from tests.proxy.harness import VERSION, a_proxy, let_others_run, until, upstream_url
from tests.streams.runner.twins import MemoryOutlet

from headrace.schemas.records import Generation, Span
from headrace.streams.client.errors import PublisherFullError, RecordTooLargeError

__all__ = ["upstream_url"]


def chunks_of(text: str) -> list[Any]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [orjson.loads(event) if event != "[DONE]" else event for event in events]


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks if isinstance(chunk, dict) for choice in chunk.get("choices", [])]
    return "".join(each["delta"].get("content") or "" for each in choices if each["index"] == index)


def generation_of(span: Span) -> Generation:
    assert span.generation is not None
    return span.generation


def check_whole(span: Span, answer_id: str, index: int = 0) -> None:
    """The span has what the engine said under this id, and can be trained on."""
    made, what = generation_of(span), said(answer_id, index)
    assert made.prompt_token_ids == what.prompt
    assert made.response_token_ids == what.ids
    assert made.response_logprobs == what.logprobs
    assert made.completion_tokens == len(what.ids)
    assert made.why_untrainable() is None
    assert (made.resource_name, made.resource_version) == VERSION
    assert what.text in made.response
    assert (span.kind, span.status) == ("client", "ok")


async def test_an_answer_in_one_piece(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open(agent="solver")
        response = await proxy.chat(path, temperature=0.5)
        assert response.status_code == 200
        answer = response.json()
        assert "prompt_token_ids" not in answer
        assert answer["choices"][0].keys() & {"token_ids"} == set()
        assert answer["choices"][0]["logprobs"] is None
        assert answer["usage"]["completion_tokens"] == 4
        (span,) = proxy.spans()
        check_whole(span, answer["id"])
        assert generation_of(span).agent == "solver"
        assert generation_of(span).sampling == {"temperature": 0.5, "max_tokens": 4.0}
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}


@pytest.mark.parametrize("number", [1, 3], ids=["one choice", "three"])
async def test_a_stream(upstream_url: str, number: int) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        response = await proxy.chat(path, stream=True, n=number)
        chunks = chunks_of(response.text)
        assert chunks[-1] == "[DONE]"
        assert not any("usage" in chunk or "prompt_token_ids" in chunk for chunk in chunks[:-1])
        assert not any("token_ids" in chunk["choices"][0] for chunk in chunks[:-1])
        spans = proxy.spans()
        assert [span.sequence_id for span in spans] == list(range(1, number + 1))
        for index, span in enumerate(spans):
            check_whole(span, chunks[0]["id"], index)
            assert text_of(chunks, index) == said(chunks[0]["id"], index).text


async def test_what_the_client_asks_for_it_gets(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        asked = {"return_token_ids": True, "logprobs": True}
        answer = (await proxy.chat(path, **asked)).json()
        assert answer["prompt_token_ids"] == list(said(answer["id"]).prompt)
        assert answer["choices"][0]["token_ids"] == list(said(answer["id"]).ids)
        response = await proxy.chat(path, stream=True, stream_options={"include_usage": True}, **asked)
        chunks = chunks_of(response.text)
        assert chunks[-2]["usage"]["completion_tokens"] == 4
        ids = [each for chunk in chunks[1:-2] for each in chunk["choices"][0]["token_ids"]]
        assert ids == list(said(chunks[0]["id"]).ids)


async def test_g1_the_end_of_a_stream_waits_for_kafka(upstream_url: str) -> None:
    """All but the last chunk are there before; nothing after it comes until the span is acknowledged."""
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=60) as proxy:
        path = proxy.open()
        body = {"model": "fake", "messages": [], "max_tokens": 4, "stream": True}
        async with proxy.client.stream("POST", f"{path}/v1/chat/completions", json=body) as response:
            text = ""
            pieces = response.aiter_text()
            while text_of(chunks_of(text)).count("w") < 3:
                text += await anext(pieces)
            rest = asyncio.ensure_future(anext(pieces))
            await until(lambda: bool(outlet.records))
            await let_others_run()
            assert not rest.done()
            assert 'finish_reason":"stop' not in text
            outlet.settle()
            text += await rest
            text += "".join([piece async for piece in pieces])
        assert chunks_of(text)[-1] == "[DONE]"
        assert 'finish_reason":"stop' in text


async def test_g1_an_answer_waits_for_kafka(upstream_url: str) -> None:
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=60) as proxy:
        answer = asyncio.ensure_future(proxy.chat(proxy.open()))
        await until(lambda: bool(outlet.records))
        await let_others_run()
        assert not answer.done()
        outlet.settle()
        assert (await answer).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_kafka_does_not_take_is_not_served(upstream_url: str, stream: bool) -> None:  # noqa: FBT001
    """The id is void, the attempt has failed, and until Kafka takes the void no call is made at all."""
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=60) as proxy:
        path = proxy.open()
        call = asyncio.ensure_future(proxy.chat(path, stream=stream))
        await until(lambda: bool(outlet.records))
        outlet.settle("broker gone")
        response = await call
        if stream:
            assert chunks_of(response.text)[-1]["error"]["code"] == "kafka_unavailable"
        else:
            assert response.status_code == 503
            assert response.headers["retry-after"] == "2"
            assert response.json()["error"]["code"] == "kafka_unavailable"
        refused = await proxy.chat(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "kafka_unavailable")
        assert (await proxy.client.get("/readyz")).status_code == 503
        outlet.is_held = False
        outlet.settle()
        await until(lambda: proxy.parts.recorder.trouble() is None)
        assert (await proxy.chat(path)).status_code == 200
        assert [(span.sequence_id, span.kind) for span in proxy.spans()] == [
            (1, "client"), (1, "void"), (2, "client"),
        ]  # fmt: skip
        closed = await proxy.close(path)
        assert closed["last_sequence_id"] == 2
        assert "broker gone" in closed["failure"]


async def test_a_late_acknowledgement_stops_new_calls(upstream_url: str) -> None:
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=0.01) as proxy:
        path = proxy.open()
        call = asyncio.ensure_future(proxy.chat(path))
        await until(lambda: proxy.parts.recorder.trouble() is not None)
        assert (await proxy.chat(path)).status_code == 503
        outlet.settle()
        assert (await call).status_code == 200
        assert proxy.parts.recorder.trouble() is None


FAULTS: list[Any] = [
    pytest.param("http_500", 500, "upstream_error_500", id="500"),
    pytest.param("http_400", 400, "upstream_error_400", id="prompt too long (C3)"),
    pytest.param("not_json", 502, "upstream_failed", id="no JSON"),
    pytest.param("dies", 502, "upstream_failed", id="dies"),
    pytest.param("no_choices", 200, "no_choices", id="no choices"),
    pytest.param("no_ids", 200, "no_token_ids", id="no ids"),
    pytest.param("usage_lies", 200, "usage_mismatch", id="ids lost (C6)"),
]


@pytest.mark.parametrize(("kind", "status", "reason"), FAULTS)
async def test_faults_of_the_upstream(upstream_url: str, kind: str, status: int, reason: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        response = await proxy.chat(path, fault={"kind": kind})
        assert response.status_code == status
        (span,) = proxy.spans()
        assert generation_of(span).why_untrainable() == reason
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}


async def test_an_engine_whose_logprobs_are_of_another_distribution(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        (engine,) = proxy.parts.engines
        engine.gives_sampled_logprobs = False
        assert (await proxy.chat(proxy.open())).status_code == 200
        assert generation_of(proxy.spans()[0]).why_untrainable() == "raw_logprobs"


async def test_the_upstreams_errors_come_through(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        response = await proxy.chat(proxy.open(), fault={"kind": "http_400"})
        message = response.json()["error"]["message"]
        assert message == "This model's maximum context length is 10 tokens"
        assert message in generation_of(proxy.spans()[0]).response


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param("dies", "upstream_failed", id="dies"),
        pytest.param("ends_early", "upstream_failed", id="ends early"),
        pytest.param("error_event", "upstream_failed", id="says an error"),
    ],
)
async def test_a_stream_that_breaks_off(upstream_url: str, kind: str, reason: str) -> None:
    """What came is kept, as far as it came; the client hears that it is not whole."""
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        response = await proxy.chat(path, stream=True, n=2, fault={"kind": kind, "after": 3})
        chunks = chunks_of(response.text)
        assert chunks[-1]["error"]["code"] == "upstream_failed"
        spans = proxy.spans()
        assert [span.kind for span in spans] == ["client", "void"]
        made = generation_of(spans[0])
        assert made.response_token_ids == said(chunks[0]["id"]).ids[:2]
        assert made.why_untrainable() == reason
        assert spans[0].status == "error"


async def test_a_stream_of_usage_alone(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        response = await proxy.chat(proxy.open(), stream=True, fault={"kind": "usage_only"})
        assert chunks_of(response.text) == ["[DONE]"]
        assert generation_of(proxy.spans()[0]).why_untrainable() == "no_choices"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_goes(upstream_url: str, stream: bool) -> None:  # noqa: FBT001
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        call = asyncio.ensure_future(proxy.chat(path, stream=stream, fault={"kind": "hangs"}))
        attempt = proxy.attempts.get(path[3:])
        await until(lambda: bool(attempt.num_calls))
        call.cancel()
        await until(lambda: not attempt.num_calls)
        (span,) = proxy.spans()
        assert generation_of(span).why_untrainable() == "client_disconnected"
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}


async def test_a_call_that_takes_too_long(upstream_url: str) -> None:
    async with a_proxy(upstream_url, call_timeout_s=0.05) as proxy:
        response = await proxy.chat(proxy.open(), fault={"kind": "hangs"})
        assert (response.status_code, response.json()["error"]["code"]) == (504, "upstream_timeout")
        assert generation_of(proxy.spans()[0]).why_untrainable() == "upstream_timeout"


async def test_an_upstream_that_is_not_there(upstream_url: str) -> None:
    async with a_proxy("http://127.0.0.1:9") as proxy:
        response = await proxy.chat(proxy.open())
        assert response.status_code == 502
        assert generation_of(proxy.spans()[0]).why_untrainable() == "upstream_failed"
        assert proxy.parts.engines.describe()[0]["state"] == "out"


async def test_an_attempt_that_ends_cuts_its_calls(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        call = asyncio.ensure_future(proxy.chat(path, fault={"kind": "hangs"}))
        await until(lambda: bool(proxy.attempts.get(path[3:]).num_calls))
        assert await proxy.close(path) == {"last_sequence_id": 1, "failure": None}
        assert (await call).status_code == 410
        assert generation_of(proxy.spans()[0]).why_untrainable() == "attempt_closed"
        assert (await proxy.chat(path)).status_code == 410


async def test_words_too_large_to_keep_are_left_out_and_said_so(upstream_url: str) -> None:
    outlet = MemoryOutlet()

    def refuse(record: Any) -> Exception | None:
        return RecordTooLargeError("9 MiB") if record.generation and record.generation.request else None

    outlet.refuse = refuse
    async with a_proxy(upstream_url, outlet) as proxy:
        answer = (await proxy.chat(proxy.open())).json()
        (span,) = proxy.spans()
        assert generation_of(span).response_token_ids == said(answer["id"]).ids
        assert "headrace.left_out" in span.attributes


async def test_any_compatible_upstream_is_kept_untrainable(upstream_url: str) -> None:
    async with a_proxy(upstream_url, is_managed=False) as proxy:
        assert (await proxy.chat(proxy.open())).status_code == 200
        made = generation_of(proxy.spans()[0])
        assert made.why_untrainable() == "no_token_ids"
        assert made.resource_version is None


async def test_completions(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        body = {"model": "fake", "prompt": "hello", "max_tokens": 5, "n": 2}
        answer = (await proxy.client.post(f"{path}/v1/completions", json=body)).json()
        assert [choice["text"] for choice in answer["choices"]] == [
            said(answer["id"], index).text for index in range(2)
        ]
        for index, span in enumerate(proxy.spans()):
            check_whole(span, answer["id"], index)
        response = await proxy.client.post(f"{path}/v1/completions", json={**body, "stream": True})
        answer_id = chunks_of(response.text)[0]["id"]
        for index, span in enumerate(proxy.spans()[2:]):
            check_whole(span, answer_id, index)


async def test_traceparent_and_agent_come_from_the_client(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "x-headrace-agent": "critic"}
        proxy.client.headers.update(headers)
        await proxy.chat(proxy.open())
        (span,) = proxy.spans()
        assert (span.trace_id, span.parent_span_id) == ("ab" * 16, "cd" * 8)
        assert generation_of(span).agent == "critic"


async def test_no_prompt_in_a_log(upstream_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with a_proxy(upstream_url, is_managed=False) as proxy:
        path = proxy.open()
        words = "the prompt's own words"
        for kind in ("none", "http_500", "dies", "not_json"):
            await proxy.chat(path, messages=[{"role": "user", "content": words}], fault={"kind": kind})
        await proxy.client.post(f"{path}/v1/chat/completions", content=f'{{"x": "{words}')
    out, err = capfd.readouterr()
    assert words not in out + err


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_void_that_kafka_does_not_take_is_a_call_that_was_not_recorded(
    upstream_url: str,
    stream: bool,  # noqa: FBT001
) -> None:
    """Here of a choice that did not come. The client hears of it, and no call is made till Kafka has it."""
    outlet = MemoryOutlet()
    outlet.refuse = lambda record: (
        PublisherFullError("full") if isinstance(record, Span) and record.kind == "void" else None
    )
    async with a_proxy(upstream_url, outlet) as proxy:
        path = proxy.open()
        fault = {"kind": "usage_only"}
        response = await proxy.chat(path, n=2, stream=stream, fault=fault)
        assert response.status_code == (200 if stream else 503)
        error = (chunks_of(response.text)[-1] if stream else response.json())["error"]
        assert error["code"] == "kafka_unavailable"
        assert (await proxy.chat(path)).status_code == 503
        outlet.refuse = lambda _: None
        await until(lambda: proxy.parts.recorder.trouble() is None)
        assert [(span.sequence_id, span.kind) for span in proxy.spans()] == [(1, "client"), (2, "void")]
        closed = await proxy.close(path)
        assert (closed["last_sequence_id"], "full" in closed["failure"]) == (2, True)


async def test_a_call_that_no_engine_takes_and_whose_void_kafka_does_not_take(upstream_url: str) -> None:
    outlet = MemoryOutlet()
    outlet.refuse = lambda _: PublisherFullError("full")
    async with a_proxy(upstream_url, outlet, admission_timeout_s=0.01) as proxy:
        (engine,) = proxy.parts.engines
        proxy.parts.engines.take_out(engine, "test")
        path = proxy.open()
        response = await proxy.chat(path)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "kafka_unavailable")
        assert proxy.parts.recorder.trouble() is not None
        outlet.refuse = lambda _: None


async def test_an_engine_whose_logprobs_nobody_has_looked_at(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        (engine,) = proxy.parts.engines
        engine.gives_sampled_logprobs = None
        assert (await proxy.chat(proxy.open())).status_code == 200
        assert generation_of(proxy.spans()[0]).why_untrainable() == "logprobs_unknown"


async def test_the_end_of_the_process_cuts_its_calls(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        calls = [
            asyncio.ensure_future(proxy.chat(path, stream=stream, fault={"kind": "stalls", "after": 2}))
            for stream in (False, True)
        ]
        (engine,) = proxy.parts.engines
        await until(lambda: engine.num_calls == 2)
        proxy.attempts.cut_calls()
        whole, stream = [await call for call in calls]
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "proxy_stopped")
        assert whole.headers["retry-after"] == "1"
        assert chunks_of(stream.text)[-1]["error"]["code"] == "proxy_stopped"
        assert [generation_of(span).why_untrainable() for span in proxy.spans()] == ["proxy_stopped"] * 2
