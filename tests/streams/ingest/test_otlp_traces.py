import itertools
import json
from typing import Any

import pytest
from tests.streams.ingest.lines import SPAN, TRACE, attributes, request, span, strings

from headrace.schemas.records import AttemptEvent, Record, Span
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.otlp import BadSpan
from headrace.streams.ingest.otlp_traces import TraceImport

OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c"
ATTEMPT = "0197a158-67d8-72a2-9762-31e13ace8b33"
ROLLOUT = "0197a158-67d8-7b10-a170-eac8067c2ad2"
CHAT = {"gen_ai__operation__name": "chat"}


def read(*requests: dict[str, Any]) -> tuple[list[Record], list[BadSpan]]:
    traces = TraceImport()
    bad = [found for value in requests for found in traces.feed(json.dumps(value).encode())]
    return list(traces.close()), bad


def good(*requests: dict[str, Any]) -> list[Record]:
    records, bad = read(*requests)
    assert bad == []
    return records


def order(records: list[Record]) -> list[tuple[int | None, str]]:
    return [(r.sequence_id, r.name) for r in records if isinstance(r, Span)]


def ended(records: list[Record]) -> list[AttemptEvent]:
    return [record for record in records if isinstance(record, AttemptEvent) and record.kind == "ended"]


def test_a_trace_is_an_attempt_in_order_of_start_then_span_id_however_it_comes_g4() -> None:
    same_start = span(2)["startTimeUnixNano"]
    spans = [span(1), span(3, startTimeUnixNano=same_start), span(2), span(9)]
    expected = good(request(*spans))
    assert order(expected) == [(1, "span 1"), (2, "span 2"), (3, "span 3"), (4, "span 9")]
    (end,) = ended(expected)
    assert (end.status, end.last_sequence_id, end.error) == ("succeeded", 4, None)
    for permuted in itertools.permutations(spans):
        assert good(request(*permuted)) == expected
        assert good(*map(request, permuted)) == expected


def test_each_trace_is_its_own_attempt_in_order_of_its_start() -> None:
    records = good(request(span(5), span(1, traceId=OTHER_TRACE)))
    assert [record.trace_id for record in records if isinstance(record, Span)] == [OTHER_TRACE, TRACE]
    assert len({end.attempt_id for end in ended(records)}) == 2
    assert [end.last_sequence_id for end in ended(records)] == [1, 1]


def test_a_trace_with_more_spans_is_another_attempt_not_a_second_story_of_one() -> None:
    less, more = good(request(span(1))), good(request(span(1), span(2)))
    assert ended(less)[0].attempt_id != ended(more)[0].attempt_id


def test_given_ids_count() -> None:
    ids = attributes(
        {"headrace.attempt_id": {"stringValue": ATTEMPT}, "headrace.rollout_id": {"stringValue": ROLLOUT}}
    )
    records = good(request(span(1), span(2, traceId=OTHER_TRACE), resource=ids))
    assert {(r.rollout_id, r.attempt_id) for r in records if isinstance(r, Span)} == {(ROLLOUT, ATTEMPT)}
    assert order(records) == [(1, "span 1"), (2, "span 2")]
    assert len(ended(records)) == 1


def test_group_and_task_come_from_attributes() -> None:
    named = strings(headrace__group_id="g", headrace__task_id="t")
    (origin,) = (
        r.origin for r in good(request(span(), resource=named)) if isinstance(r, AttemptEvent) and r.origin
    )
    assert (origin.group_id, origin.task_id, origin.reward_grace_s) == ("g", "t", 0.0)


def numbered(number: int, sequence_id: int) -> dict[str, Any]:
    return span(number, attributes=attributes({"headrace.sequence_id": {"intValue": str(sequence_id)}}))


def test_given_sequence_ids_count_and_gaps_stay_g3() -> None:
    records = good(request(numbered(1, 4), span(2), numbered(3, 2), span(4)))
    assert order(records) == [(4, "span 1"), (5, "span 2"), (2, "span 3"), (6, "span 4")]
    assert ended(records)[0].last_sequence_id == 6


def test_a_sequence_id_given_twice_is_a_conflict() -> None:
    records, (bad,) = read(request(numbered(1, 1), numbered(2, 1)))
    assert bad.problem.reason == "conflict"
    assert bad.part == 2
    assert ended(records)[0].last_sequence_id == 2, "one is missing"


def test_a_span_sent_again_is_left_out_and_another_with_its_id_is_a_conflict() -> None:
    traces = TraceImport()
    assert list(traces.feed(json.dumps(request(span(1), span(1))).encode())) == []
    assert traces.num_repeated == 1
    (bad,) = traces.feed(json.dumps(request(span(1, name="other"))).encode())
    assert bad.problem.reason == "conflict"
    assert json.loads(bad.original)["name"] == "other"
    records = list(traces.close())
    assert order(records) == [(1, "span 1")]
    assert ended(records)[0].last_sequence_id == 2


def test_a_trace_that_lacks_a_span_is_not_complete_g3() -> None:
    records, bad = read(request(span(1), span(2, kind=77), span(3), span(4, traceId=OTHER_TRACE)))
    assert len(bad) == 1
    assert order(records) == [(1, "span 1"), (2, "span 3"), (1, "span 4")]
    assert [end.last_sequence_id for end in ended(records)] == [3, 1]


def test_a_request_that_is_cut_leaves_the_traces_it_names_incomplete_g3() -> None:
    traces = TraceImport()
    assert list(traces.feed(json.dumps(request(span(1))).encode())) == []
    with pytest.raises(MalformedError):
        list(traces.feed(json.dumps(request(span(2))).encode()[:-30]))
    assert ended(list(traces.close()))[0].last_sequence_id == 2


@pytest.mark.parametrize(
    ("root", "child", "status", "error"),
    [
        pytest.param({"code": 2, "message": "no"}, {}, "failed", "no", id="the root failed"),
        pytest.param({"code": 2}, {}, "failed", "its root span has status error", id="and does not say why"),
        pytest.param({}, {"code": 2, "message": "no"}, "succeeded", None, id="only a child failed"),
    ],
)
def test_an_attempt_failed_if_its_root_did(root: Any, child: Any, status: str, error: str | None) -> None:
    records = good(request(span(1, status=root), span(2, parentSpanId=f"{1:016x}", status=child)))
    (end,) = ended(records)
    assert (end.status, end.error) == (status, error)


def test_a_call_belongs_to_the_nearest_agent_above_it() -> None:
    def below(number: int, parent: int, **named: str) -> dict[str, Any]:
        return span(number, parentSpanId=f"{parent:016x}", attributes=strings(**named))

    records = good(
        request(
            span(1, attributes=strings(gen_ai__agent__name="outer")),
            below(2, 1),
            below(3, 2, **CHAT),
            below(4, 1, gen_ai__agent__name="inner"),
            below(5, 4, **CHAT),
            below(6, 4, **CHAT, gen_ai__agent__name="own"),
            below(7, 99, **CHAT),
            below(8, 8, **CHAT),
        )
    )
    agents = [record.generation.agent for record in records if isinstance(record, Span) and record.generation]
    assert agents == ["outer", "inner", "own", "", ""]


def test_several_choices_are_several_spans_next_to_each_other() -> None:
    answers = strings(**CHAT, gen_ai__output__messages='[{"content":"a"},{"content":"b"}]')
    records = good(request(span(1, attributes=answers), span(2)))
    found = [(r.sequence_id, r.span_id) for r in records if isinstance(r, Span)]
    assert found == [(1, f"{1:016x}"), (2, f"{1:016x}-1"), (3, f"{2:016x}")]


def test_one_sequence_id_for_several_choices_is_malformed() -> None:
    values = strings(
        **CHAT, gen_ai__output__messages='[{"content":"a"},{"content":"b"}]', headrace__sequence_id="1"
    )
    _, (bad,) = read(request(span(1, attributes=values)))
    assert "2 choices" in bad.problem.detail


def test_nothing_in_nothing_out() -> None:
    assert good() == []
    assert good({}, {"resourceSpans": []}) == []


def test_ids_are_the_same_each_time() -> None:
    value = request(span(1, spanId=SPAN))
    assert good(value) == good(value)
