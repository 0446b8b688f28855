"""OpenTelemetry in the agent's process: spans of instrumented frameworks become the attempt's.

A span belongs to the attempt that runs where it starts, or to its parent's; it takes its sequence id at the
start, as a model call must (G2). Needs `pip install 'headrace[otel]'`.
"""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.trace import format_span_id, format_trace_id
from pydantic import ValidationError

from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Generation, Span, SpanEvent, SpanLink
from headrace.streams.ingest import gen_ai
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.genai_spans import read_generations
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attributes import attribute_strings, whole_text
from headrace.streams.runner.context import attempt_or_none
from headrace.streams.runner.errors import AttemptClosedError

MALFORMED = "malformed_generation"
"""Why a call whose attributes can't be read is kept and not trained on."""

_SWEEP_AT = 10_000
"""Open spans."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

log = structlog.get_logger(__name__)


class _Begun(NamedTuple):
    attempt: Attempt
    sequence_id: int
    span: SdkSpan


class HeadraceSpanProcessor(SpanProcessor):
    """Publishes each span at its end. Nothing that goes wrong reaches the code that made the span: a span
    that can't be recorded leaves a hole, and the attempt is not trained on (G3).
    """

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
        self._sweep_at = _SWEEP_AT
        self._lock = threading.Lock()

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:  # noqa: ARG002
        parent = self._begun.get(span.parent.span_id) if span.parent else None
        attempt = attempt_or_none() or (parent.attempt if parent else None)
        if attempt is None or span.context is None:
            return
        try:
            begun = _Begun(attempt, attempt.take(), span)
        except AttemptClosedError:
            return
        except HeadraceError as error:
            # The attempt fails at its end: its sequencer says so.
            log.warning("span lost", attempt_id=attempt.attempt_id, error=type(error).__name__)
            return
        with self._lock:
            self._begun[span.context.span_id] = begun
            if len(self._begun) >= self._sweep_at:
                self._sweep()

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None:
            return
        with self._lock:
            begun = self._begun.pop(span.context.span_id, None)
        if begun is None:
            return
        try:
            self._publish(begun, span)
        except AttemptClosedError:
            # It came too late: its id is void already.
            return
        except (HeadraceError, ValueError) as error:
            begun.attempt.lose(begun.sequence_id)
            log.warning(
                "span lost", attempt_id=begun.attempt.attempt_id, error=type(error).__name__, name=span.name
            )

    def shutdown(self) -> None:
        """Nothing is buffered here."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002
        """Spans are with Kafka's client already; the runner waits for their acknowledgement."""
        return True

    def _sweep(self) -> None:
        """Forget spans that never ended, of attempts that did."""
        self._begun = {key: begun for key, begun in self._begun.items() if not begun.attempt.is_closed}
        self._sweep_at = max(_SWEEP_AT, 2 * len(self._begun))

    def _publish(self, begun: _Begun, span: ReadableSpan) -> None:
        base = read_span(span, begun.attempt, begun.sequence_id)
        try:
            generations = read_generations(base.attributes, base.events)
        except (MalformedError, ValidationError):
            agent = base.attributes.get(gen_ai.AGENT_NAME, "")
            generations = (Generation(agent=agent, untrainable_reason=MALFORMED),)
        for generation in generations or (None,):
            index = generation.choice_index if generation else 0
            # One span a choice, each with an id of its own.
            sequence_id = begun.sequence_id if index == 0 else begun.attempt.take()
            made = base.model_copy(
                update={
                    "sequence_id": sequence_id,
                    "span_id": f"{base.span_id}-{index}" if index else base.span_id,
                    "generation": self._named(generation, span),
                }
            )
            begun.attempt.put(sequence_id, lambda _, made=made: made)  # type: ignore[misc]

    def _named(self, generation: Generation | None, span: ReadableSpan) -> Generation | None:
        """With its agent's name: its own, else that of the nearest span above that is still open."""
        if generation is None or generation.agent:
            return generation
        parent = span.parent
        while parent is not None:
            above = self._begun.get(parent.span_id)
            if above is None:
                break
            name = (above.span.attributes or {}).get(gen_ai.AGENT_NAME)
            if name:
                return generation.model_copy(update={"agent": whole_text(str(name))})
            parent = above.span.parent
        return generation


def instrument() -> bool:
    """Add the processor to the global tracer provider, once; without a provider, set one up.

    False where OpenTelemetry's global provider is of a kind that takes no processors.
    """
    provider: Any = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    if not hasattr(provider, "add_span_processor"):
        return False
    if not getattr(provider, "_headrace_is_instrumented", False):
        provider.add_span_processor(HeadraceSpanProcessor())
        provider._headrace_is_instrumented = True  # noqa: SLF001  goes with the provider, wherever that goes
    return True


def read_span(span: ReadableSpan, attempt: Attempt, sequence_id: int) -> Span:
    """A span of OpenTelemetry's as ours, without a generation. ValueError where it makes no sense."""
    context, scope = span.context, span.instrumentation_scope
    assert context is not None  # noqa: S101  the processor keeps no others
    extra = {
        "otel.scope.version": (scope.version or "") if scope else "",
        "w3c.tracestate": context.trace_state.to_header(),
        "otel.dropped_attributes_count": span.dropped_attributes or "",
        "otel.dropped_events_count": span.dropped_events or "",
        "otel.dropped_links_count": span.dropped_links or "",
    }
    attributes = attribute_strings(span.attributes or {})
    attributes |= {name: str(value) for name, value in extra.items() if value}
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=sequence_id,
        kind=span.kind.name.lower(),
        trace_id=format_trace_id(context.trace_id),
        span_id=format_span_id(context.span_id),
        parent_span_id=format_span_id(span.parent.span_id) if span.parent else "",
        name=whole_text(span.name),
        start_time=_time(span.start_time),
        end_time=_time(span.end_time),
        status=span.status.status_code.name.lower(),
        status_message=whole_text(span.status.description or ""),
        attributes=attributes,
        resource_attributes=attribute_strings(span.resource.attributes),
        scope=scope.name if scope else "",
        events=tuple(
            SpanEvent(
                name=whole_text(event.name),
                time=_time(event.timestamp),
                attributes=attribute_strings(event.attributes or {}),
            )
            for event in span.events
        ),
        links=tuple(
            SpanLink(
                trace_id=format_trace_id(link.context.trace_id),
                span_id=format_span_id(link.context.span_id),
                attributes=attribute_strings(link.attributes or {}),
            )
            for link in span.links
        ),
    )


def _time(nanoseconds: int | None) -> datetime:
    if nanoseconds is None:
        raise ValueError("a span without a time")
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
