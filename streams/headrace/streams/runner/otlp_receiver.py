"""OTLP/HTTP traces of one attempt: an export request into spans, and its answer.

A span that comes again, because its exporter heard no answer, counts once. Sequence ids follow the order of
arrival, within a request that of the start: ids in attributes are not taken, one place hands them out (G2).

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.records import Span
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.otlp import BadSpan, ReadSpan, read_request
from headrace.streams.ingest.strict_json import decode
from headrace.streams.runner.attempt_events import AttemptEvents
from headrace.streams.runner.lineage import Lineage

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

_INVALID_ARGUMENT = 3


class Received(NamedTuple):
    num_rejected: int
    why: str
    """Of the first rejected."""


class OtlpReceiver:
    """Of one attempt; one request at a time."""

    def __init__(self, events: AttemptEvents) -> None:
        self._events = events
        self._seen: set[str] = set()
        self._lineage = Lineage()

    def receive(self, body: bytes, content_type: str) -> Received:
        """Emit its spans. MalformedError if it is no request.

        What can't be read or kept is rejected for good, and leaves a hole in the sequence (G3).
        """
        try:
            read = list(read_request(decode(body) if content_type == JSON else _json_of(body)))
        except MalformedError:
            self._events.lose(self._events.take())
            raise
        spans = sorted((each for each in read if isinstance(each, ReadSpan)), key=lambda each: each.start_ns)
        choices = [span for each in spans for span in each.choices]
        for span in choices:
            self._lineage.add(span.span_id, span.parent_span_id, span.attributes)
        problems = [str(each.problem) for each in read if isinstance(each, BadSpan)]
        for _ in problems:
            self._events.lose(self._events.take())
        for span in choices:
            if span.span_id in self._seen:
                continue
            self._seen.add(span.span_id)
            try:
                self._events.put(self._events.take(), self._place(span))
            except BadRecordError as error:
                problems.append(str(error))
        return Received(len(problems), problems[0] if problems else "")

    def _place(self, span: Span) -> Callable[[int], Span]:
        def build(sequence_id: int) -> Span:
            return span.model_copy(
                update={
                    "rollout_id": self._events.rollout_id,
                    "attempt_id": self._events.attempt_id,
                    "sequence_id": sequence_id,
                    "generation": self._lineage.named(span.generation, span.parent_span_id),
                }
            )

        return build


@cache
def reads_protobuf() -> bool:
    """Whether the extra `otel` is installed."""
    try:
        return find_spec("opentelemetry.proto") is not None and find_spec("google.protobuf") is not None
    except ModuleNotFoundError:
        return False


def answer(received: Received, content_type: str) -> bytes:
    """ExportTraceServiceResponse: empty, or with what was rejected."""
    if content_type == JSON:
        partial = {"rejectedSpans": str(received.num_rejected), "errorMessage": received.why}
        return json.dumps({"partialSuccess": partial} if received.num_rejected else {}).encode()
    response = _messages().ExportTraceServiceResponse()
    if received.num_rejected:
        response.partial_success.rejected_spans = received.num_rejected
        response.partial_success.error_message = received.why
    encoded: bytes = response.SerializeToString()
    return encoded


def refusal(message: str, content_type: str) -> bytes:
    """google.rpc.Status, as OTLP answers errors."""
    if content_type != PROTOBUF:
        return json.dumps({"code": _INVALID_ARGUMENT, "message": message}).encode()
    words = message.encode()[:1000]
    # Field 1 is a varint, field 2 has a length in front: two messages' worth of protobuf by hand.
    length = bytes([len(words)]) if len(words) < 128 else bytes([len(words) & 0x7F | 0x80, len(words) >> 7])
    return bytes([0x08, _INVALID_ARGUMENT, 0x12]) + length + words


def _json_of(body: bytes) -> str:
    """A protobuf request in protobuf's own JSON; ids in base64, which the reader knows apart from hex."""
    from google.protobuf.json_format import MessageToJson  # type: ignore[import-untyped]  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        request = _messages().ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise MalformedError("invalid", "no ExportTraceServiceRequest") from error
    text: str = MessageToJson(request, indent=None)
    return text


def _messages() -> Any:  # noqa: ANN401  generated code
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415  an extra
    except ImportError as error:
        raise HeadraceError("OTLP as protobuf needs: pip install 'headrace[otel]'") from error
    return trace_service_pb2
