"""The URL of an attempt: rewards and traces over HTTP."""

import asyncio
import base64
import gzip
import json
import re
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from tests.builders import an_id
from tests.streams.runner.twins import MemoryOutlet, an_attempt

from headrace.schemas.records import Reward, Span
from headrace.streams.client.errors import PublisherFullError, RecordTooLargeError
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_server import AttemptServer
from headrace.streams.runner.http_message import MAX_BODY_BYTES
from headrace.streams.runner.mailbox import Mailbox

PROTOBUF = {"content-type": "application/x-protobuf"}


class Scene:
    def __init__(self, client: httpx.AsyncClient, attempt: Attempt, outlet: MemoryOutlet, url: str) -> None:
        self.client = client
        self.attempt = attempt
        self.outlet = outlet
        self.url = url

    async def post(self, what: str, body: Any, **options: Any) -> httpx.Response:
        given = {"json": body} if isinstance(body, dict) else {"content": body}
        return await self.client.post(f"{self.url}/{what}", **given, **options)


def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        outlet = MemoryOutlet()
        attempt = an_attempt(outlet, Mailbox(asyncio.get_running_loop()))
        async with AttemptServer() as server, httpx.AsyncClient() as client:
            with server.open(attempt):
                await scene(Scene(client, attempt, outlet, server.url_of(attempt)))

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  a turn of the loop at a time
            await asyncio.sleep(0)


def a_span(number: int, **fields: Any) -> dict[str, Any]:
    defaults = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(1_790_000_000_000_000_000 + number),
        "endTimeUnixNano": str(1_790_000_000_000_001_000 + number),
    }
    return defaults | fields


def request_of(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


CALL = [text("gen_ai.operation.name", "chat"), text("gen_ai.request.model", "tiny")]


# --- rewards ---------------------------------------------------------------------------------------------


def test_rewards_are_numbered_and_acknowledged() -> None:
    async def scene(the: Scene) -> None:
        the.attempt.emit_span("call")
        answer = await the.post("rewards", {"value": 0.5})
        assert (answer.status_code, answer.json()) == (200, {"sequence_id": 2})
        answer = await the.post("rewards", {"value": 1, "name": "style", "about": 1})
        assert answer.json() == {"sequence_id": 3}
        rewards = the.outlet.of(Reward)
        assert [(each.name, each.value, each.about_sequence_id) for each in rewards] == [
            ("outcome", 0.5, None),
            ("style", 1.0, 1),
        ]

    play(scene)


def test_the_answer_waits_for_kafka() -> None:
    async def scene(the: Scene) -> None:
        the.outlet.is_held = True
        posting = asyncio.create_task(the.post("rewards", {"value": 0.5}))
        await until(lambda: len(the.outlet.records) == 1)
        await asyncio.wait([posting], timeout=0.05)
        assert not posting.done()
        the.outlet.settle()
        assert (await posting).status_code == 200
        posting = asyncio.create_task(the.post("rewards", {"value": 0.5}))
        await until(lambda: len(the.outlet.records) == 2)
        the.outlet.settle("broken pipe")
        answer = await posting
        assert answer.status_code == 503
        assert "broken pipe" in answer.json()["error"]

    play(scene)


def test_a_reward_sent_again_counts_once() -> None:
    async def scene(the: Scene) -> None:
        body = {"value": 0.5, "reward_id": an_id("reward")}
        first, second = [await the.post("rewards", body) for _ in range(2)]
        assert first.json() == second.json() == {"sequence_id": 1}
        assert [each.reward_id for each in the.outlet.of(Reward)] == [an_id("reward")]

    play(scene)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b'{"value": NaN}', "not_json", id="NaN"),
        pytest.param(b'{"value": 1e999}', "finite", id="beyond a float"),
        pytest.param(b'{"value": "1"}', "value", id="text"),
        pytest.param(b'{"value": null}', "value", id="null is not 0"),
        pytest.param(b"{}", "value", id="none"),
        pytest.param(b'{"value": 1, "about": 7}', "about sequence id 7", id="about what was not"),
        pytest.param(b'{"value": 1, "step": 7}', "step|\\*", id="a field that is none"),
        pytest.param(b"0.5", "object|dictionary", id="no object"),
        pytest.param(b"\xff", "UTF-8", id="no text"),
    ],
)
def test_a_reward_that_is_none_is_refused(body: bytes, words: str) -> None:
    async def scene(the: Scene) -> None:
        answer = await the.post("rewards", body)
        assert answer.status_code == 400
        assert re.search(words, answer.json()["error"]), answer.json()
        assert the.outlet.records == []

    play(scene)


# --- traces ----------------------------------------------------------------------------------------------


def as_protobuf(request: dict[str, Any]) -> bytes:
    message: Any = ParseDict(to_base64(request), ExportTraceServiceRequest())
    encoded: bytes = message.SerializeToString()
    return encoded


def to_base64(request: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(request))
    for span in copied["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
            span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return copied


@pytest.mark.parametrize("is_protobuf", [False, True], ids=["json", "protobuf"])
@pytest.mark.parametrize("packing", ["identity", "gzip", "deflate"])
def test_traces_come_in_every_way_that_exporters_send_them(is_protobuf: bool, packing: str) -> None:  # noqa: FBT001
    request = request_of(
        a_span(2, parentSpanId=f"{1:016x}", attributes=CALL),
        a_span(1, attributes=[text("gen_ai.agent.name", "solver")]),
    )
    body = as_protobuf(request) if is_protobuf else json.dumps(request).encode()
    packs: dict[str, Callable[[bytes], bytes]] = {
        "identity": bytes,
        "gzip": gzip.compress,
        "deflate": zlib.compress,
    }
    headers = {"content-encoding": packing, "content-type": "application/json"} | (
        PROTOBUF if is_protobuf else {}
    )

    async def scene(the: Scene) -> None:
        answer = await the.post("v1/traces", packs[packing](body), headers=headers)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == headers["content-type"]
        assert answer.content == (b"" if is_protobuf else b"{}")
        first, second = the.outlet.of(Span)
        assert [first.sequence_id, second.sequence_id] == [1, 2]
        assert [first.name, second.name] == ["span 1", "span 2"]
        assert second.attempt_id == the.attempt.attempt_id
        assert second.generation is not None
        assert (second.generation.agent, second.generation.model) == ("solver", "tiny")

    play(scene)


def test_a_span_sent_again_counts_once() -> None:
    async def scene(the: Scene) -> None:
        for spans in ([a_span(1)], [a_span(1), a_span(2)]):
            assert (await the.post("v1/traces", request_of(*spans))).json() == {}
        assert [span.name for span in the.outlet.of(Span)] == ["span 1", "span 2"]
        assert the.attempt.close() == 2

    play(scene)


def test_ids_in_attributes_are_not_taken() -> None:
    """G2: one place hands them out."""

    async def scene(the: Scene) -> None:
        attribute = {"key": "headrace.sequence_id", "value": {"intValue": "77"}}
        await the.post("v1/traces", request_of(a_span(1, attributes=[attribute])))
        assert [span.sequence_id for span in the.outlet.of(Span)] == [1]

    play(scene)


@pytest.mark.parametrize("is_protobuf", [False, True], ids=["json", "protobuf"])
def test_spans_that_can_not_be_kept_are_rejected_and_leave_holes(is_protobuf: bool) -> None:  # noqa: FBT001
    def refuse(record: Any) -> Exception | None:
        return RecordTooLargeError("9 MiB") if getattr(record, "name", "") == "span 3" else None

    async def scene(the: Scene) -> None:
        the.outlet.refuse = refuse
        request = request_of(a_span(1), a_span(2, startTimeUnixNano="0"), a_span(3))
        body = as_protobuf(request) if is_protobuf else json.dumps(request).encode()
        answer = await the.post("v1/traces", body, headers=PROTOBUF if is_protobuf else {})
        assert answer.status_code == 200
        if is_protobuf:
            partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
            assert partial.rejected_spans == 2
            assert "startTimeUnixNano" in partial.error_message
        else:
            assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
        assert the.attempt.close() == 3
        assert len(the.outlet.of(Span)) == 1

    play(scene)


@pytest.mark.parametrize(
    ("body", "headers"),
    [(b'{"spans": []}', {}), (b"{", {}), (b"\xff\xff", PROTOBUF)],
    ids=["no request", "no JSON", "no protobuf"],
)
def test_what_is_no_request_is_refused_and_leaves_a_hole(body: bytes, headers: dict[str, str]) -> None:
    async def scene(the: Scene) -> None:
        answer = await the.post("v1/traces", body, headers=headers)
        assert answer.status_code == 400
        if headers:
            assert answer.content.startswith(b"\x08\x03\x12")
        else:
            assert answer.json()["code"] == 3
        assert the.outlet.records == []
        assert the.attempt.close() == 1

    play(scene)


def test_exporters_are_told_to_try_again_while_kafka_is_away() -> None:
    async def scene(the: Scene) -> None:
        the.outlet.refuse = lambda _: PublisherFullError("Kafka is away")
        for what, body in (("v1/traces", request_of(a_span(1))), ("rewards", {"value": 1})):
            answer = await the.post(what, body)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"

    play(scene)


# --- HTTP ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 404),
        ("POST", "/a", 404),
        ("POST", "/a/{}", 404),
        ("POST", "/a/{}/v1/metrics", 404),
        ("POST", "/b/{}/rewards", 404),
        ("POST", "/a/019a0000-0000-7000-8000-000000000000/rewards", 404),
        ("GET", "/a/{}/rewards", 405),
    ],
)
def test_other_places_are_refused(method: str, path: str, status: int) -> None:
    async def scene(the: Scene) -> None:
        base = the.url.partition("/a/")[0]
        answer = await the.client.request(method, base + path.format(the.attempt.attempt_id), content=b"{}")
        assert answer.status_code == status

    play(scene)


def test_a_closed_attempt_is_gone() -> None:
    async def scene(the: Scene) -> None:
        the.attempt.close()
        assert (await the.post("rewards", {"value": 1})).status_code == 410
        assert (await the.post("v1/traces", request_of(a_span(1)))).status_code == 410

    play(scene)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        pytest.param({"content-encoding": "br"}, b"x", 415, id="unknown packing"),
        pytest.param({"content-encoding": "gzip"}, b"x", 400, id="not packed"),
        pytest.param({"content-encoding": "gzip"}, gzip.compress(b"x" * 99)[:-9], 400, id="cut short"),
        pytest.param({"content-encoding": "gzip"}, gzip.compress(bytes(17 << 20)), 413, id="a bomb"),
        pytest.param({"content-type": "text/plain"}, b"x", 415, id="unknown type"),
        pytest.param({}, bytes(17 << 20), 413, id="too large"),
    ],
)
def test_bodies_that_are_refused(headers: dict[str, str], body: bytes, status: int) -> None:
    async def scene(the: Scene) -> None:
        try:
            answer = await the.post("v1/traces", body, headers=headers)
        except httpx.WriteError:
            # The answer came before the body was sent, and the connection is closed.
            assert len(body) > MAX_BODY_BYTES
            return
        assert answer.status_code == status

    play(scene)


def test_requests_in_chunks_on_one_connection() -> None:
    async def scene(the: Scene) -> None:
        host, port = the.url.removeprefix("http://").partition("/")[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = the.url.partition(f":{port}")[2]
        for _ in range(2):
            head = f"POST {path}/rewards HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head.encode() + b'7\r\n{"value\r\n6\r\n": 0.5\r\n1\r\n}\r\n0\r\n\r\n')
            assert (await reader.readline()) == b"HTTP/1.1 200 \r\n"
            await reader.readuntil(b"\r\n\r\n")
            assert b"sequence_id" in await reader.readuntil(b"}")
        head = (
            f"POST {path}/rewards HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 12\r\n\r\n"
        )
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b'{"value": 1}')
        assert (await reader.readline()) == b"HTTP/1.1 200 \r\n"
        await reader.readuntil(b"}")
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        await reader.read()
        writer.close()
        assert len(the.outlet.of(Reward)) == 3

    play(scene)


def test_a_client_that_leaves_within_a_request_harms_nobody() -> None:
    async def scene(the: Scene) -> None:
        host, port = the.url.removeprefix("http://").partition("/")[0].split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        writer.close()
        assert (await the.post("rewards", {"value": 1})).status_code == 200

    play(scene)
