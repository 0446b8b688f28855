import base64
import json
from typing import Any

import pytest
from tests.streams.ingest.lines import SPAN, TRACE, attributes, request, span, strings

from headrace.schemas.records import Span
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.otlp import BadSpan, ReadSpan, read_request
from headrace.streams.ingest.proto_json import snake_case

SOME_ID = "0197a158-67d8-72a2-9762-31e13ace8b33"


def read(value: Any) -> list[ReadSpan | BadSpan]:
    return list(read_request(json.dumps(value)))


def only(value: dict[str, Any]) -> Span:
    (found,) = read(value)
    assert isinstance(found, ReadSpan), found
    (choice,) = found.choices
    return choice


def bad(value: Any) -> BadSpan:
    (found,) = read(request(value))
    assert isinstance(found, BadSpan)
    return found


FULL = request(
    {
        "traceId": TRACE.upper(),
        "spanId": SPAN,
        "parentSpanId": "00000000000000aa",
        "traceState": "k=v",
        "name": "look",
        "kind": 3,
        "startTimeUnixNano": "1790000000123456789",
        "endTimeUnixNano": 1790000001000000000,
        "attributes": attributes(
            {"n": {"intValue": "7"}, "list": {"arrayValue": {"values": [{"boolValue": True}]}}}
        ),
        "droppedAttributesCount": 2,
        "events": [
            {"timeUnixNano": "1790000000500000000", "name": "seen", "attributes": strings(what="branch")},
            {"name": "at no time"},
        ],
        "links": [{"traceId": TRACE, "spanId": "00000000000000bb", "attributes": strings(why="asked")}],
        "status": {"code": 2, "message": "no light"},
        "notInTheSpecification": {"x": 1},
    },
    resource=strings(service__name="mill"),
    version="1.2",
    attributes=strings(short="y"),
)


def to_snake(value: Any) -> Any:
    if isinstance(value, dict):
        return {snake_case(key): to_snake(item) for key, item in value.items()}
    return [to_snake(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("spelled", [FULL, to_snake(FULL)], ids=["camelCase", "snake_case"])
def test_all_that_a_span_has_is_kept(spelled: dict[str, Any]) -> None:
    found = only(spelled)
    assert found.trace_id == TRACE
    assert found.span_id == SPAN
    assert found.parent_span_id == "00000000000000aa"
    assert (found.name, found.kind, found.scope) == ("look", "client", "lib")
    assert found.start_time.isoformat() == "2026-09-21T14:13:20.123456+00:00", "whole microseconds before"
    assert found.end_time.isoformat() == "2026-09-21T14:13:21+00:00"
    assert (found.status, found.status_message) == ("error", "no light")
    assert found.attributes == {
        "n": "7",
        "list": "[true]",
        "w3c.tracestate": "k=v",
        "otel.scope.version": "1.2",
        "otel.scope.short": "y",
        "otel.dropped_attributes_count": "2",
    }
    assert found.resource_attributes == {"service.name": "mill"}
    assert [(event.name, event.attributes) for event in found.events] == [
        ("seen", {"what": "branch"}),
        ("at no time", {}),
    ]
    assert found.events[1].time == found.start_time
    assert [(link.span_id, link.attributes) for link in found.links] == [
        ("00000000000000bb", {"why": "asked"})
    ]
    assert found.generation is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (None, "internal"),
        (0, "internal"),
        (1, "internal"),
        (2, "server"),
        (3, "client"),
        (4, "producer"),
        (5, "consumer"),
        ("5", "consumer"),
        ("SPAN_KIND_SERVER", "server"),
    ],
)
def test_kinds_are_numbers_or_names(kind: Any, expected: str) -> None:
    assert only(request(span(kind=kind))).kind == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(None, "unset"), ({}, "unset"), ({"code": 1}, "ok"), ({"code": "STATUS_CODE_ERROR"}, "error")],
)
def test_status_codes_are_numbers_or_names(status: Any, expected: str) -> None:
    assert only(request(span(status=status))).status == expected


def test_ids_in_base64_as_protobuf_itself_would_write_them_are_read() -> None:
    ids: dict[str, Any] = {
        "traceId": base64.b64encode(bytes.fromhex(TRACE)).decode(),
        "spanId": base64.b64encode(bytes.fromhex(SPAN)).decode(),
    }
    found = only(request(span(**ids)))
    assert (found.trace_id, found.span_id) == (TRACE, SPAN)


def test_a_parent_of_zeros_is_none() -> None:
    assert only(request(span(parentSpanId="0" * 16))).parent_span_id == ""


def test_scopes_by_their_old_name_are_read() -> None:
    old = {"instrumentationLibrary": {"name": "old"}, "spans": [span()]}
    assert only({"resourceSpans": [{"instrumentationLibrarySpans": [old]}]}).scope == "old"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("headrace.rollout_id", SOME_ID.upper(), (SOME_ID, None, None)),
        ("headrace.rollout_id", "0197a158-67d8-42a2-9762-31e13ace8b33", (None, None, None)),
        ("headrace.attempt_id", SOME_ID, (None, SOME_ID, None)),
        ("headrace.attempt_id", "mine", (None, None, None)),
        ("headrace.sequence_id", "12", (None, None, 12)),
        ("headrace.sequence_id", "0", (None, None, None)),
        ("headrace.sequence_id", "first", (None, None, None)),
    ],
)
def test_headraces_own_ids_count_where_they_are_valid(
    name: str, value: str, expected: tuple[Any, ...]
) -> None:
    of_span = read(request(span(attributes=attributes({name: {"stringValue": value}}))))
    of_resource = read(request(span(), resource=attributes({name: {"stringValue": value}})))
    for (found,) in (of_span, of_resource):
        assert isinstance(found, ReadSpan)
        assert (found.rollout_id, found.attempt_id, found.sequence_id) == expected


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        pytest.param({"traceId": None}, "no traceId", id="no trace id"),
        pytest.param({"spanId": "0" * 16}, "no spanId", id="span id of zeros"),
        pytest.param({"traceId": "xyz"}, "32 hex digits", id="trace id not hex"),
        pytest.param({"traceId": TRACE[:-2]}, "32 hex digits", id="trace id too short"),
        pytest.param({"spanId": 7}, "a string", id="span id a number"),
        pytest.param({"startTimeUnixNano": None}, "startTimeUnixNano: no time", id="no start"),
        pytest.param({"endTimeUnixNano": "0"}, "endTimeUnixNano: no time", id="not ended"),
        pytest.param({"startTimeUnixNano": "soon"}, "64-bit integer", id="start a word"),
        pytest.param({"startTimeUnixNano": str(2**63)}, "64-bit integer", id="start too late"),
        pytest.param({"kind": 9}, "not in the enum", id="kind unknown"),
        pytest.param({"status": []}, "an object", id="status a list"),
        pytest.param({"attributes": {"k": "v"}}, "a list", id="attributes an object"),
        pytest.param({"events": [3]}, "an object", id="event a number"),
        pytest.param({"name": "\ud83c"}, "surrogate", id="half a surrogate pair"),
        pytest.param({"attributes": strings(x="\udf0a")}, "surrogate", id="half a pair in an attribute"),
    ],
)
def test_a_malformed_span_is_blamed_by_its_place_and_kept(fields: dict[str, Any], detail: str) -> None:
    value = span(2, **fields)
    before, found, after = read(request(span(1), value, span(3)))
    assert isinstance(before, ReadSpan)
    assert isinstance(after, ReadSpan)
    assert isinstance(found, BadSpan)
    assert found.part == 2
    assert detail in str(found.problem)
    assert json.loads(found.original) == value


def test_a_malformed_span_names_its_trace_where_that_can_be_read() -> None:
    assert bad(span(kind=99)).trace_id == TRACE
    assert bad(span(traceId="?")).trace_id is None
    assert bad("no span at all").trace_id is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([], id="a list"),
        pytest.param({"resourceLogs": []}, id="logs"),
        pytest.param({"resourceSpans": {}}, id="an object for a list"),
        pytest.param({"resourceSpans": [{"scopeSpans": [{"spans": {}}]}]}, id="spans an object"),
        pytest.param({"resourceSpans": [{"resource": 1}]}, id="resource a number"),
    ],
)
def test_what_is_no_request_is_malformed(value: Any) -> None:
    with pytest.raises(MalformedError):
        read(value)


@pytest.mark.parametrize("value", [{}, {"resourceSpans": []}, {"resourceSpans": [{}]}])
def test_an_empty_request_has_no_spans(value: Any) -> None:
    assert read(value) == []
