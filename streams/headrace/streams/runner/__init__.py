"""Runs agents: `@agent` marks one, `headrace runner` runs it, and its code emits events from within.

Needs nothing but the core install; `instrument` (OpenTelemetry) needs the extra `otel`.
"""

from typing import TYPE_CHECKING

from headrace.streams.runner.agent import Agent, agent
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_events import OpenSpan
from headrace.streams.runner.context import current_attempt, emit_reward, emit_span, span
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError, NoAttemptError

if TYPE_CHECKING:
    from headrace.streams.runner.otel import HeadraceSpanProcessor, instrument

__all__ = [
    "Agent",
    "Attempt",
    "AttemptClosedError",
    "HeadraceSpanProcessor",
    "InvalidRewardError",
    "NoAttemptError",
    "OpenSpan",
    "agent",
    "current_attempt",
    "emit_reward",
    "emit_span",
    "instrument",
    "span",
]


def __getattr__(name: str) -> object:
    if name in {"HeadraceSpanProcessor", "instrument"}:
        from headrace.streams.runner import otel  # noqa: PLC0415  an extra

        return getattr(otel, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
