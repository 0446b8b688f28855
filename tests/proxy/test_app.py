"""What the application has beside calls: health, metrics, models, and its limits."""

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.proxy.connection import connected, request
from tests.proxy.fake_vllm import FAULTS
from tests.proxy.harness import Proxy, a_proxy, until, upstream_url
from tests.streams.runner.twins import MemoryOutlet

from headrace.proxy.attempts import Attempts

__all__ = ["upstream_url"]

METRICS = {
    "headrace_proxy_calls": "counter",
    "headrace_proxy_refused": "counter",
    "headrace_proxy_call_seconds": "histogram",
    "headrace_proxy_record_seconds": "histogram",
    "headrace_proxy_tokens": "counter",
    "headrace_proxy_untrainable": "counter",
    "headrace_proxy_voids": "counter",
    "headrace_proxy_running_calls": "gauge",
    "headrace_proxy_open_attempts": "gauge",
    "headrace_proxy_unacknowledged_records": "gauge",
    "headrace_proxy_engine_calls": "gauge",
    "headrace_proxy_engine_serving": "gauge",
    "headrace_proxy_engine_version": "gauge",
    "headrace_proxy_engine_gap": "gauge",
}


async def metrics_of(proxy: Proxy) -> tuple[dict[str, str], dict[tuple[str, ...], float]]:
    """Kinds by name, and values by the sample's name and its labels' values."""
    text = (await proxy.client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    return {family.name: family.type for family in families}, samples


async def ready(proxy: Proxy) -> tuple[int, Any]:
    answer = await proxy.client.get("/readyz")
    assert answer.json()["ready"] == (answer.status_code == 200)
    return answer.status_code, answer.json()["reason"]


async def test_health_asks_nothing(upstream_url: str) -> None:
    async with a_proxy("http://127.0.0.1:9") as proxy:
        answer = await proxy.client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_readiness_says_why_not(upstream_url: str) -> None:
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=0.01) as proxy:
        assert await ready(proxy) == (200, None)
        (engine,) = proxy.parts.engines
        proxy.parts.engines.take_out(engine, "it has restarted")
        assert await ready(proxy) == (503, "no engine is serving")
        described = (await proxy.client.get("/readyz")).json()["engines"][0]
        assert (described["state"], described["reason"]) == ("out", "it has restarted")
        proxy.parts.engines.serve(engine, engine.version)
        call = asyncio.ensure_future(proxy.chat(proxy.open()))
        await until(lambda: proxy.parts.recorder.trouble() is not None)
        status, reason = await ready(proxy)
        assert status == 503
        assert reason.startswith("Kafka has not acknowledged for")
        outlet.settle()
        await call
        assert await ready(proxy) == (200, None)


async def test_metrics(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        kinds, _ = await metrics_of(proxy)
        assert METRICS.items() <= kinds.items()
        path = proxy.open()
        await proxy.chat(path, n=2)
        await proxy.chat(path, fault={"kind": "no_ids"})
        await proxy.chat(path, n=2, fault={"kind": "http_500"})
        await proxy.chat("/a/x")
        _, samples = await metrics_of(proxy)
        assert samples["headrace_proxy_calls_total", "ok", "openai_chat"] == 2
        assert samples["headrace_proxy_calls_total", "openai_chat", "upstream_error_500"] == 1
        assert samples["headrace_proxy_refused_total", "attempt_unknown"] == 1
        assert samples["headrace_proxy_tokens_total", "completion"] == 8
        assert samples["headrace_proxy_untrainable_total", "no_token_ids"] == 1
        assert samples["headrace_proxy_untrainable_total", "upstream_error_500"] == 1
        assert samples["headrace_proxy_voids_total",] == 1
        assert samples["headrace_proxy_open_attempts",] == 1
        assert samples["headrace_proxy_running_calls",] == 0
        assert samples["headrace_proxy_engine_version", "engine-0"] == 7
        assert samples["headrace_proxy_engine_serving", "engine-0"] == 1


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind not in {"hangs", "stalls"}])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_labels_are_few(upstream_url: str, kind: str, stream: bool) -> None:  # noqa: FBT001
    """Whatever happens, an outcome is one word, and none that the upstream chose."""
    async with a_proxy(upstream_url) as proxy:
        await proxy.chat(proxy.open(), stream=stream, fault={"kind": kind, "after": 2})
        _, samples = await metrics_of(proxy)
        (outcome,) = [words[1:] for words in samples if words[0] == "headrace_proxy_calls_total"]
        known = {"ok", "upstream_failed", "upstream_error_500", "upstream_error_400"}
        assert set(outcome) - {"openai_chat"} <= known


@pytest.mark.parametrize("api", ["chat/completions", "completions", "messages", "responses"])
async def test_too_many_calls_at_a_time(upstream_url: str, api: str) -> None:
    async with a_proxy(upstream_url, max_calls=2) as proxy:
        path = proxy.open()
        attempt = proxy.attempts.get(path[3:])
        running = [asyncio.ensure_future(proxy.chat(path, fault={"kind": "hangs"})) for _ in range(2)]
        await until(lambda: attempt.num_calls == 2)
        refused = await proxy.client.post(f"{path}/v1/{api}", json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for call in running:
            call.cancel()
        await until(lambda: attempt.num_calls == 0)
        assert (await proxy.chat(path)).status_code == 200
        assert [span.sequence_id for span in proxy.spans()] == [1, 2, 3]


async def test_engines_that_are_busy(upstream_url: str) -> None:
    """A call waits for a place for a while; its id is void if there is none."""
    async with a_proxy(upstream_url, max_engine_calls=1, admission_timeout_s=0.05) as proxy:
        path = proxy.open()
        running = asyncio.ensure_future(proxy.chat(path, fault={"kind": "hangs"}))
        (engine,) = proxy.parts.engines
        await until(lambda: engine.num_calls == 1)
        refused = await proxy.chat(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "engines_busy")
        assert refused.headers["retry-after"]
        assert (await proxy.close(path))["last_sequence_id"] == 2
        await running
        assert sorted((span.sequence_id, span.kind) for span in proxy.spans()) == [(1, "client"), (2, "void")]


async def test_models_are_the_upstream_s(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        answer = await proxy.client.get(f"{path}/v1/models")
        assert [model["id"] for model in answer.json()["data"]] == ["fake"]
        assert (await proxy.client.get(f"{path}/v1/models/fake")).status_code == 404
        assert proxy.spans() == []


async def test_tokens_are_counted(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}]}
        answer = await proxy.client.post(f"{proxy.open()}/v1/messages/count_tokens", json=body)
        assert (answer.status_code, answer.json()) == (200, {"input_tokens": 7})


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        pytest.param(b"{", 400, "invalid_request_error", id="no JSON"),
        pytest.param(b'{"model": "m"}', 400, "invalid_request_error", id="no messages"),
        pytest.param(
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": %s}'
            % nested(300).encode(),
            400,
            "invalid_request_error",
            id="nested too deeply",
        ),
        pytest.param(
            b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', 502, "api_error", id="upstream"
        ),
    ],
)
async def test_counts_of_tokens_are_refused_as_anthropic_does(body: bytes, status: int, kind: str) -> None:
    async with a_proxy("http://127.0.0.1:9") as proxy:
        answer = await proxy.client.post(f"{proxy.open()}/v1/messages/count_tokens", content=body)
        assert answer.status_code == status
        assert (answer.json()["type"], answer.json()["error"]["type"]) == ("error", kind)


async def test_models_of_an_upstream_that_is_not_there() -> None:
    async with a_proxy("http://127.0.0.1:9") as proxy:
        answer = await proxy.client.get(f"{proxy.open()}/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


async def until_refused(proxy: Proxy, path: str, *, is_refused: bool) -> None:
    async with asyncio.timeout(20):
        while True:
            answer = await proxy.client.post(f"{path}/rewards", content=b"x")
            if (answer.status_code == 429) == is_refused:
                return


OTHERS = ["{}/v1/traces", "{}/rewards", "{}/v1/messages/count_tokens", "/attempts"]


@pytest.mark.parametrize("target", OTHERS)
async def test_too_many_other_requests_at_a_time(upstream_url: str, target: str) -> None:
    """Refused before their bodies are read."""
    async with a_proxy(upstream_url, max_requests=1) as proxy:
        path = proxy.open()
        async with connected(proxy.url) as slow:
            await slow.send(request(f"{path}/rewards", b'{"value": 1}')[:-1])
            async with asyncio.timeout(20), connected(proxy.url) as refused:
                while True:
                    await refused.send(request(target.format(path), b"{}"))
                    answer = await refused.answer()
                    if answer.status == 429:
                        break
            assert answer.headers["retry-after"] == "1"
            assert (await proxy.chat(path)).status_code == 200
            await slow.send(b"}")
            assert (await slow.answer()).status == 200
        assert (await proxy.client.post(f"{path}/rewards", json={"value": 1})).status_code == 200


@pytest.mark.parametrize("target", OTHERS)
async def test_a_client_that_goes_before_its_request_is_whole_is_no_fault(
    upstream_url: str, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with a_proxy(upstream_url, max_requests=1) as proxy:
        path = proxy.open()
        async with connected(proxy.url) as connection:
            await connection.send(request(target.format(path), b"{}")[:-1])
            await until_refused(proxy, path, is_refused=True)
        await until_refused(proxy, path, is_refused=False)
    out, err = capfd.readouterr()
    assert "request failed" not in out + err


async def test_a_fault_of_ours_is_answered_and_logged_by_its_kind(
    upstream_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("the prompt's own words")

    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        monkeypatch.setattr(Attempts, "get", fail)
        answer = await proxy.chat(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    out, err = capfd.readouterr()
    assert "ValueError" in out + err
    assert "own words" not in out + err
