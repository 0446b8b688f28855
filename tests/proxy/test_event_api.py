"""What agents send beside calls: traces by OpenTelemetry's own exporter, and rewards."""

import asyncio
import gzip
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.proxy.harness import Proxy, a_proxy, until, upstream_url
from tests.streams.runner.twins import MemoryOutlet

from headrace.schemas.ids import uuid7
from headrace.schemas.records import Reward

__all__ = ["upstream_url"]

PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}
GZIP = {"content-encoding": "gzip"}


def made_spans(number: int = 2) -> list[ReadableSpan]:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("agent")
    for count in range(number):
        with tracer.start_as_current_span(f"tool {count}", attributes={"tool.name": "search"}):
            pass
    return list(kept.get_finished_spans())


def encoded(spans: list[ReadableSpan]) -> bytes:
    body: bytes = encode_spans(spans).SerializeToString()
    return body


async def traces(proxy: Proxy, path: str, body: bytes, headers: dict[str, str]) -> Any:
    return await proxy.client.post(f"{path}/v1/traces", content=body, headers=headers)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
async def test_the_exporter_of_opentelemetry(upstream_url: str, compression: Compression) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        exporter = OTLPSpanExporter(
            endpoint=f"{proxy.url}{path}/v1/traces",
            headers={"authorization": f"Bearer {proxy.token}"},
            compression=compression,
        )
        result = await asyncio.to_thread(exporter.export, made_spans())
        exporter.shutdown()  # type: ignore[no-untyped-call]
        assert result == SpanExportResult.SUCCESS
        await proxy.chat(path)
        assert [(span.sequence_id, span.name) for span in proxy.spans()] == [
            (1, "tool 0"), (2, "tool 1"), (3, "chat fake"),
        ]  # fmt: skip
        assert proxy.spans()[0].attributes["tool.name"] == "search"
        assert {span.attempt_id for span in proxy.spans()} == {path[3:]}
        assert await proxy.close(path) == {"last_sequence_id": 3, "failure": None}


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_json(upstream_url: str, is_packed: bool, is_large: bool) -> None:  # noqa: FBT001
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        number = 400 if is_large else 2
        body = orjson.dumps(MessageToDict(encode_spans(made_spans(number))))
        answer = await traces(
            proxy, path, gzip.compress(body) if is_packed else body, JSON | (GZIP if is_packed else {})
        )
        assert (answer.status_code, answer.json()) == (200, {})
        assert len(proxy.spans()) == number


async def test_what_comes_again_counts_once(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path, body = proxy.open(), encoded(made_spans())
        for _ in range(3):
            assert (await traces(proxy, path, body, PROTOBUF)).status_code == 200
        assert await proxy.close(path) == {"last_sequence_id": 2, "failure": None}


async def test_a_span_that_can_t_be_read_is_rejected_and_the_rest_is_kept(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        request = encode_spans(made_spans(3))
        request.resource_spans[0].scope_spans[0].spans[1].span_id = b"short"
        answer = await traces(proxy, path, request.SerializeToString(), PROTOBUF)
        assert answer.status_code == 200
        told = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert told.rejected_spans == 1
        assert told.error_message
        as_json = await traces(proxy, path, orjson.dumps(MessageToDict(request)), JSON)
        assert as_json.json()["partialSuccess"]["rejectedSpans"] == "1"
        assert sorted(span.name for span in proxy.spans()) == ["tool 0", "tool 2"]
        # Something is not there: the ids have holes, so that nobody trains on it (G3).
        closed = await proxy.close(path)
        assert closed["last_sequence_id"] > len(proxy.spans())


BAD = {
    "no protobuf": (b"\xff\xff\xff", PROTOBUF, 400),
    "no JSON": (b"{", JSON, 400),
    "no gzip": (b"{}", JSON | GZIP, 400),
    "an encoding that nobody knows": (b"{}", JSON | {"content-encoding": "br"}, 415),
    "another type": (b"{}", {"content-type": "text/plain"}, 415),
    "a bomb": (gzip.compress(b"\x00" * 20_000_000), JSON | GZIP, 413),
}


@pytest.mark.parametrize(("body", "headers", "status"), BAD.values(), ids=BAD)
async def test_bad_traces(upstream_url: str, body: bytes, headers: dict[str, str], status: int) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        assert (await traces(proxy, path, body, headers)).status_code == status
        assert (await traces(proxy, path, encoded(made_spans()), PROTOBUF)).status_code == 200


async def test_rewards(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path, reward_id = proxy.open(), uuid7()
        await proxy.chat(path)
        given: list[dict[str, Any]] = [
            {"value": 0.5, "name": "style", "about": 1},
            {"value": 1.0, "reward_id": reward_id},
            {"value": 1.0, "reward_id": reward_id},
        ]
        ids = []
        for body in given:
            answer = await proxy.client.post(f"{path}/rewards", json=body)
            assert answer.status_code == 200
            ids.append(answer.json()["sequence_id"])
        assert ids == [2, 3, 3]
        rewards = proxy.outlet.of(Reward)
        assert [(each.name, each.value, each.about_sequence_id) for each in rewards] == [
            ("style", 0.5, 1), ("outcome", 1.0, None),
        ]  # fmt: skip
        assert await proxy.close(path) == {"last_sequence_id": 3, "failure": None}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"value": NaN}', id="NaN (C17)"),
        pytest.param(b'{"value": 1e999}', id="infinite"),
        pytest.param(b'{"value": null}', id="none"),
        pytest.param(b'{"value": "1"}', id="a text"),
        pytest.param(b'{"value": 1, "about": 7}', id="about no call"),
        pytest.param(b'{"value": 1, "attempt_id": "x"}', id="an attempt of its own"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"{", id="no JSON"),
    ],
)
async def test_bad_rewards(upstream_url: str, body: bytes) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        answer = await proxy.client.post(f"{path}/rewards", content=body)
        assert answer.status_code == 400
        assert proxy.outlet.of(Reward) == []
        assert (await proxy.close(path))["failure"] is None


@pytest.mark.parametrize("what", ["rewards", "v1/traces"])
async def test_kafka_does_not_take_it(upstream_url: str, what: str) -> None:
    """The answer waits for Kafka, as the client's own attempts to send it again do."""
    outlet = MemoryOutlet(is_held=True)
    async with a_proxy(upstream_url, outlet, late_s=60) as proxy:
        path = proxy.open()
        body, headers = (b'{"value": 1}', JSON) if what == "rewards" else (encoded(made_spans(1)), PROTOBUF)
        sending = asyncio.ensure_future(proxy.client.post(f"{path}/{what}", content=body, headers=headers))
        await until(lambda: bool(outlet.records))
        assert not sending.done()
        outlet.settle("broker gone")
        answer = await sending
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
        assert "broker gone" in (await proxy.close(path))["failure"]


async def test_after_the_end(upstream_url: str) -> None:
    async with a_proxy(upstream_url) as proxy:
        path = proxy.open()
        await proxy.close(path)
        assert (await proxy.client.post(f"{path}/rewards", json={"value": 1})).status_code == 410
        assert (await traces(proxy, path, encoded(made_spans()), PROTOBUF)).status_code == 410
