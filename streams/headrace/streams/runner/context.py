"""Which attempt runs here: a context variable, so that each of many at once sees its own.

It follows `await`, tasks and `asyncio.to_thread`; a thread that an agent starts by itself does not have it
(keep the Attempt at hand there).
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from headrace.schemas.records import OUTCOME
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_events import OpenSpan
from headrace.streams.runner.errors import NoAttemptError

_current: ContextVar[Attempt | None] = ContextVar("headrace_attempt", default=None)


def current_attempt() -> Attempt:
    """The attempt that this code runs in; NoAttemptError outside of one."""
    attempt = _current.get()
    if attempt is None:
        raise NoAttemptError("no attempt runs here: agents are run by `headrace runner`")
    return attempt


def attempt_or_none() -> Attempt | None:
    return _current.get()


@contextmanager
def attempt_context(attempt: Attempt) -> Iterator[Attempt]:
    """Make it the current one within."""
    token = _current.set(attempt)
    try:
        yield attempt
    finally:
        _current.reset(token)


def emit_reward(value: float, name: str = OUTCOME, about: int | None = None) -> int:
    """As `Attempt.emit_reward`, of the current attempt."""
    return current_attempt().emit_reward(value, name, about)


def emit_span(name: str, **fields: Any) -> int:  # noqa: ANN401  those of Attempt.emit_span
    """As `Attempt.emit_span`, of the current attempt."""
    return current_attempt().emit_span(name, **fields)


def span(name: str, *, attributes: Mapping[str, Any] | None = None) -> AbstractContextManager[OpenSpan]:
    """As `Attempt.span`, of the current attempt."""
    return current_attempt().span(name, attributes=attributes)
