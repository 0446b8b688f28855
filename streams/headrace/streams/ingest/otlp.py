"""Spans out of OTLP/JSON: one ExportTraceServiceRequest at a time, into what headrace keeps of each.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.records import Span
from headrace.schemas.records.base import INT64_MAX, UuidV7
from headrace.schemas.records.span import SpanEvent, SpanLink
from headrace.streams.ingest.any_value import read_attributes
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.genai_spans import read_generations
from headrace.streams.ingest.proto_json import Message, to_int64
from headrace.streams.ingest.strict_json import parse

ROLLOUT_ID = "headrace.rollout_id"
ATTEMPT_ID = "headrace.attempt_id"
SEQUENCE_ID = "headrace.sequence_id"
TASK_ID = "headrace.task_id"
GROUP_ID = "headrace.group_id"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")
_UNPLACED = "00000000-0000-7000-8000-000000000000"
_UUID_V7: TypeAdapter[str] = TypeAdapter(UuidV7)


class ReadSpan(NamedTuple):
    """A span of a file, not yet in its place: its rollout, attempt and sequence ids are still to come."""

    trace_id: str
    start_ns: int
    rollout_id: str | None
    attempt_id: str | None
    sequence_id: int | None
    """As its attributes say; None where they don't, or not validly."""
    choices: tuple[Span, ...]
    """One span for each choice of a model call; else the one."""
    source: Any

    def original(self) -> bytes:
        """Itself as JSON, for dead-letters."""
        return json.dumps(self.source).encode()


class BadSpan(NamedTuple):
    """A span that can't be read: its place in the request, from 1, and itself as JSON."""

    part: int
    problem: MalformedError
    original: bytes
    trace_id: str | None
    """Of the trace that now lacks it."""


def read_request(text: str) -> Iterator[ReadSpan | BadSpan]:
    """Each span of the request; MalformedError if it isn't one."""
    request = Message(parse(text), "")
    if request.values and request.get("resourceSpans") is None:
        raise MalformedError("invalid", "no resourceSpans")
    part = 0
    for resource_spans in request.messages("resourceSpans"):
        resource = read_attributes(resource_spans.message("resource"))
        for scope_spans, scope in _scopes(resource_spans):
            for value in scope_spans.items("spans"):
                part += 1
                yield _read_or_blame(value, part, resource, scope)


def _scopes(resource_spans: Message) -> Iterator[tuple[Message, Message]]:
    for scope_spans in resource_spans.messages("scopeSpans"):
        yield scope_spans, scope_spans.message("scope")
    # What OTLP before 1.0 called them.
    for scope_spans in resource_spans.messages("instrumentationLibrarySpans"):
        yield scope_spans, scope_spans.message("instrumentationLibrary")


def _read_or_blame(value: Any, part: int, resource: dict[str, str], scope: Message) -> ReadSpan | BadSpan:  # noqa: ANN401
    try:
        return _read_span(Message(value, "span"), resource, scope)
    except MalformedError as error:
        problem = error
    except ValidationError as error:
        problem = MalformedError("invalid", describe(error))
    except RecursionError:
        problem = MalformedError("invalid", "nested too deeply")
    try:
        trace_id = Message(value, "span").hex_id("traceId", 16) or None
    except MalformedError:
        trace_id = None
    return BadSpan(part, problem, json.dumps(value).encode(), trace_id)


def _read_span(span: Message, resource: dict[str, str], scope: Message) -> ReadSpan:
    trace_id, span_id = span.hex_id("traceId", 16), span.hex_id("spanId", 8)
    if not trace_id or not span_id:
        raise MalformedError("invalid", f"span: no {'spanId' if trace_id else 'traceId'}")
    start_ns, start = _time(span, "startTimeUnixNano")
    attributes = read_attributes(span)
    events = tuple(_read_event(event, start) for event in span.messages("events"))
    status = span.message("status")
    kind = span.enum("kind", "SPAN_KIND_", _KINDS)
    base = Span.model_validate(
        {
            "rollout_id": _UNPLACED,
            "attempt_id": _UNPLACED,
            "sequence_id": 1,
            "kind": "internal" if kind == "unspecified" else kind,
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_span_id": span.hex_id("parentSpanId", 8),
            "name": span.text("name"),
            "start_time": start,
            "end_time": _time(span, "endTimeUnixNano")[1],
            "status": status.enum("code", "STATUS_CODE_", _STATUSES),
            "status_message": status.text("message"),
            "attributes": attributes | _not_attributes(span, scope),
            "resource_attributes": resource,
            "scope": scope.text("name"),
            "events": events,
            "links": tuple(_read_link(link) for link in span.messages("links")),
        }
    )
    choices = [
        base.model_copy(
            update={
                "generation": generation,
                "span_id": f"{span_id}-{generation.choice_index}" if generation.choice_index else span_id,
            }
        )
        for generation in read_generations(attributes, events)
    ]
    known = resource | attributes
    sequence_id = _sequence_id(known.get(SEQUENCE_ID))
    if sequence_id is not None and len(choices) > 1:
        raise MalformedError("invalid", f"{SEQUENCE_ID} is one, and the call has {len(choices)} choices")
    return ReadSpan(
        trace_id=trace_id,
        start_ns=start_ns,
        rollout_id=_uuid7(known.get(ROLLOUT_ID)),
        attempt_id=_uuid7(known.get(ATTEMPT_ID)),
        sequence_id=sequence_id,
        choices=tuple(choices) or (base,),
        source=span.values,
    )


def _not_attributes(span: Message, scope: Message) -> dict[str, str]:
    """What a Span has no field for, by OpenTelemetry's names where it has some."""
    found = {f"otel.scope.{key}": value for key, value in read_attributes(scope).items()}
    found["otel.scope.version"] = scope.text("version")
    found["w3c.tracestate"] = span.text("traceState")
    for name in ("Attributes", "Events", "Links"):
        dropped = span.int64(f"dropped{name}Count")
        found[f"otel.dropped_{name.lower()}_count"] = str(dropped) if dropped else ""
    return {key: value for key, value in found.items() if value}


def _read_event(event: Message, default: datetime) -> SpanEvent:
    time = _time(event, "timeUnixNano")[1] if event.int64("timeUnixNano") else default
    return SpanEvent(name=event.text("name"), time=time, attributes=read_attributes(event))


def _read_link(link: Message) -> SpanLink:
    return SpanLink(
        trace_id=link.hex_id("traceId", 16),
        span_id=link.hex_id("spanId", 8),
        attributes=read_attributes(link),
    )


def _time(message: Message, name: str) -> tuple[int, datetime]:
    """Nanoseconds, and the time in whole microseconds before."""
    nanoseconds = message.int64(name)
    if not 0 < nanoseconds <= INT64_MAX:
        raise MalformedError("invalid", f"{message.where(name)}: no time")
    return nanoseconds, _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _uuid7(value: str | None) -> str | None:
    try:
        return _UUID_V7.validate_python((value or "").lower())
    except ValidationError:
        return None


def _sequence_id(value: str | None) -> int | None:
    try:
        number = to_int64(value, SEQUENCE_ID)
    except MalformedError:
        return None
    return number if number > 0 else None
