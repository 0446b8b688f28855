"""OpenTelemetry's spans as an attempt's events."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode
from tests.streams.runner.twins import MemoryOutlet, a_mailbox, an_attempt

from headrace.schemas.records import Record, Span
from headrace.streams.client.errors import RecordTooLargeError
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.context import attempt_context
from headrace.streams.runner.otel import MALFORMED, HeadraceSpanProcessor

CALL: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "tiny",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.usage.input_tokens": 2,
    "gen_ai.usage.output_tokens": 2,
    "headrace.prompt_token_ids": [1, 2],
    "headrace.response_token_ids": [3, 4],
    "headrace.response_logprobs": [-0.5, -0.25],
}


@pytest.fixture
def tracer() -> Iterator[trace.Tracer]:
    provider = TracerProvider(resource=Resource({"service.name": "agents"}), shutdown_on_exit=False)
    provider.add_span_processor(HeadraceSpanProcessor())
    yield provider.get_tracer("a.framework", "1.2")
    provider.shutdown()


def test_spans_outside_of_an_attempt_are_nobody_s(tracer: trace.Tracer, attempt: Attempt) -> None:
    with tracer.start_as_current_span("setup"):
        pass
    assert attempt.close() == 0


def test_a_span_is_kept_whole(tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet) -> None:
    with attempt_context(attempt):
        with tracer.start_as_current_span("outer") as outer:
            outer.set_attributes({"n": 3, "ok": True, "x": 0.5, "tags": ("a", "b"), "broken": "\ud83d!"})
            with tracer.start_as_current_span(
                "inner", kind=SpanKind.CLIENT, links=[trace.Link(outer.get_span_context(), {"why": "test"})]
            ) as inner:
                inner.add_event("retried", {"after_s": 1})
                inner.set_status(Status(StatusCode.ERROR, "no answer"))
        attempt.emit_reward(1.0)
    inner_span, outer_span = outlet.of(Span)
    assert [outer_span.sequence_id, inner_span.sequence_id] == [1, 2]
    assert outer_span.attributes == {
        "n": "3",
        "ok": "true",
        "x": "0.5",
        "tags": '["a","b"]',
        "broken": "?!",
        "otel.scope.version": "1.2",
    }
    assert outer_span.resource_attributes == {"service.name": "agents"}
    assert (outer_span.scope, outer_span.kind, outer_span.status) == ("a.framework", "internal", "unset")
    assert outer_span.parent_span_id == ""
    assert len(outer_span.trace_id) == 32
    assert inner_span.parent_span_id == outer_span.span_id
    assert (inner_span.kind, inner_span.status, inner_span.status_message) == ("client", "error", "no answer")
    assert inner_span.links[0].span_id == outer_span.span_id
    assert inner_span.events[0].name == "retried"
    assert inner_span.events[0].attributes == {"after_s": "1"}
    assert outer_span.start_time <= inner_span.start_time <= inner_span.end_time <= outer_span.end_time


def test_a_model_call_is_a_generation_of_the_nearest_agent_above(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    with (
        attempt_context(attempt),
        tracer.start_as_current_span("invoke_agent", attributes={"gen_ai.agent.name": "solver"}),
        tracer.start_as_current_span("step"),
        tracer.start_as_current_span("chat tiny", attributes=CALL),
    ):
        pass
    call = outlet.of(Span)[0]
    assert call.sequence_id == 3
    generation = call.generation
    assert (generation.agent, generation.model) == ("solver", "tiny")
    assert (generation.prompt_token_ids, generation.response_token_ids) == ((1, 2), (3, 4))
    assert generation.response_logprobs == (-0.5, -0.25)
    assert generation.why_untrainable() is None
    assert [span.generation for span in outlet.of(Span)[1:]] == [None, None]


def test_each_choice_is_a_span_with_an_id_of_its_own(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    choices = [{"role": "assistant", "content": answer} for answer in ("a", "b", "c")]
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.output.messages": json.dumps(choices)}
    with attempt_context(attempt), tracer.start_as_current_span("chat", attributes=attributes):
        attempt.emit_reward(0.5, "style")
    spans = outlet.of(Span)
    assert [span.sequence_id for span in spans] == [1, 3, 4]
    assert [span.generation.choice_index for span in spans] == [0, 1, 2]
    assert len({span.span_id for span in spans}) == 3
    assert attempt.close() == 4


def test_a_call_that_can_not_be_read_is_kept_and_not_trained_on(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    attributes: dict[str, Any] = CALL | {
        "headrace.response_token_ids": "nonsense",
        "gen_ai.agent.name": "solver",
    }
    with attempt_context(attempt), tracer.start_as_current_span("chat", attributes=attributes):
        pass
    (span,) = outlet.of(Span)
    assert span.generation.why_untrainable() == MALFORMED
    assert span.generation.agent == "solver"


def test_a_span_follows_its_parent_into_another_thread(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    with attempt_context(attempt), tracer.start_as_current_span("outer") as outer:
        context = trace.set_span_in_context(outer)

        def work() -> None:
            tracer.start_span("inner", context).end()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [span.name for span in outlet.of(Span)] == ["inner", "outer"]


def test_attempts_at_once_each_have_their_own(tracer: trace.Tracer, outlet: MemoryOutlet) -> None:
    with a_mailbox() as mailbox:
        attempts = [an_attempt(outlet, mailbox, name=str(number)) for number in range(4)]
    open_spans = []
    for attempt in attempts:
        with attempt_context(attempt):
            open_spans.append(tracer.start_span("call"))
    for span in open_spans:
        span.end()
    assert [span.attempt_id for span in outlet.of(Span)] == [attempt.attempt_id for attempt in attempts]


def test_a_span_that_ends_too_late_or_never_is_void(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    with attempt_context(attempt):
        late, never = tracer.start_span("late"), tracer.start_span("never")
        assert attempt.close() == 2
        late.end()
        tracer.start_span("after").end()
    assert never.is_recording()
    assert [(span.kind, span.sequence_id) for span in outlet.of(Span)] == [("void", 1), ("void", 2)]


def test_a_span_that_can_not_be_recorded_leaves_a_hole_and_troubles_nobody(
    tracer: trace.Tracer, attempt: Attempt, outlet: MemoryOutlet
) -> None:
    def refuse(record: Record) -> Exception | None:
        return RecordTooLargeError("9 MiB") if isinstance(record, Span) and record.name == "big" else None

    outlet.refuse = refuse
    with attempt_context(attempt):
        tracer.start_span("big").end()
        tracer.start_span("small").end()
    assert attempt.close() == 2
    assert [span.sequence_id for span in outlet.of(Span)] == [2]


def test_spans_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch, outlet: MemoryOutlet) -> None:
    """C5."""
    monkeypatch.setattr("headrace.streams.runner.otel._SWEEP_AT", 10)
    processor = HeadraceSpanProcessor()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("leaky")
    for number in range(50):
        with a_mailbox() as mailbox:
            attempt = an_attempt(outlet, mailbox, name=str(number))
        with attempt_context(attempt):
            tracer.start_span("never ended")
        attempt.close()
        assert len(processor._begun) <= 10


INSTRUMENT = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from headrace.streams.runner import instrument, HeadraceSpanProcessor
{setup}
before = trace.get_tracer_provider()
assert instrument() and instrument()
provider = trace.get_tracer_provider()
processors = provider._active_span_processor._span_processors
print(provider is before, sum(isinstance(each, HeadraceSpanProcessor) for each in processors))
"""


@pytest.mark.parametrize(
    ("setup", "kept"),
    [("", "False"), ("trace.set_tracer_provider(TracerProvider())", "True")],
    ids=["no provider", "a provider"],
)
def test_the_global_provider_is_instrumented_once(setup: str, kept: str) -> None:
    program = INSTRUMENT.format(setup=setup)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [kept, "1"]
