"""Attempt: what an agent's code sees of the attempt that it runs in, and the events that it emits.

Every event takes the next sequence id and is handed to Kafka before the call returns (G2). An id that was
handed out and came to nothing becomes a void span. What happened and could not be recorded leaves a hole, so
that the attempt is never trained on (G3). Once closed, an attempt takes no more events.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import (
    OUTCOME,
    AttemptTask,
    Generation,
    Record,
    ResourceVersion,
    Reward,
    Span,
    now,
)
from headrace.streams.client.errors import RecordTooLargeError
from headrace.streams.runner.attributes import attribute_strings
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.rewards import Rewards, finite
from headrace.streams.runner.sequencer import Sequencer

if TYPE_CHECKING:
    from headrace.schemas.records.rollout import Mode

SpanKind = Literal["internal", "client", "server", "producer", "consumer"]
SpanStatus = Literal["unset", "ok", "error"]

_parent_span: ContextVar[str] = ContextVar("headrace_parent_span", default="")


class OpenSpan:
    """A span that has begun; what is set here is published at its end."""

    def __init__(self, sequence_id: int, name: str, attributes: Mapping[str, Any]) -> None:
        self.sequence_id = sequence_id
        self.span_id = new_span_id()
        self.name = name
        self.attributes: dict[str, Any] = dict(attributes)
        self.generation: Generation | None = None
        self.status: SpanStatus = "unset"
        self.status_message = ""


class Attempt:
    """Safe to share between threads."""

    def __init__(
        self,
        task: AttemptTask,
        attempt_id: str,
        *,
        outlet: Outlet,
        outbox: Outbox,
        sequencer: Sequencer,
    ) -> None:
        self.record = task
        self.rollout_id = task.rollout_id
        self.attempt_id = attempt_id
        self.number = task.attempt
        """1 for the first attempt of its rollout."""
        self.task_id = task.task_id
        self.mode: Mode = task.mode
        self.metadata: Mapping[str, str] = task.metadata
        self.resources: Mapping[str, ResourceVersion] = {}
        """By name; set before the agent begins, as is the next."""
        self.base_url: str | None = None
        """Of an OpenAI-compatible API for this attempt's calls, where one is known."""
        self.trace_id = attempt_id.replace("-", "")
        self._outlet = outlet
        self._outbox = outbox
        self._sequencer = sequencer
        self._lock = threading.RLock()
        self._taken: set[int] = set()
        self._is_closed = False

    @cached_property
    def task(self) -> Any:  # noqa: ANN401  JSON
        """The task, parsed. ValueError if it is no JSON."""
        return json.loads(self.record.task)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- events --------------------------------------------------------------------------------------

    def emit_reward(
        self, value: float, name: str = OUTCOME, about: int | None = None, *, reward_id: str | None = None
    ) -> int:
        """Judge the attempt, or the call that has sequence id `about`; return the reward's sequence id.

        InvalidRewardError for a value that is not finite or a call that was not made, before anything is
        recorded. AttemptClosedError after the end.
        """
        number = finite(value, name)
        if about is not None and not 1 <= about <= self._sequencer.last:
            raise InvalidRewardError(
                f"reward {name!r} is about sequence id {about}, and {self._sequencer.last} is the last"
            )

        def build(sequence_id: int) -> Reward:
            return Reward(
                rollout_id=self.rollout_id,
                attempt_id=self.attempt_id,
                sequence_id=sequence_id,
                reward_id=reward_id or uuid7(),
                name=name,
                value=number,
                about_sequence_id=about,
                source="agent",
                time=now(),
            )

        return self._emit(build)

    def emit_rewards(self, rewards: Rewards) -> None:
        """Several by name, the outcome last."""
        for name in sorted(rewards, key=lambda name: name == OUTCOME):
            self.emit_reward(rewards[name], name)

    def emit_span(
        self,
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        generation: Generation | None = None,
        kind: SpanKind = "internal",
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        status: SpanStatus = "unset",
        status_message: str = "",
    ) -> int:
        """Record what has happened; return its sequence id. With a generation it is a model call."""
        ended = end_time or now()
        return self._emit(
            lambda sequence_id: self._span(
                sequence_id,
                name=name,
                kind=kind,
                span_id=new_span_id(),
                parent_span_id=_parent_span.get(),
                start_time=start_time or ended,
                end_time=ended,
                attributes=attribute_strings(attributes or {}),
                generation=generation,
                status=status,
                status_message=status_message,
            )
        )

    @contextmanager
    def span(
        self, name: str, *, attributes: Mapping[str, Any] | None = None, kind: SpanKind = "internal"
    ) -> Iterator[OpenSpan]:
        """Record what happens within; the sequence id is taken at the start. An exception is its status."""
        opened = OpenSpan(self.take(), name, attributes or {})
        started, parent_span_id = now(), _parent_span.get()
        token = _parent_span.set(opened.span_id)
        try:
            yield opened
        except BaseException as error:
            opened.status, opened.status_message = "error", opened.status_message or type(error).__name__
            raise
        finally:
            _parent_span.reset(token)
            self.put(
                opened.sequence_id,
                lambda sequence_id: self._span(
                    sequence_id,
                    name=opened.name,
                    kind=kind,
                    span_id=opened.span_id,
                    parent_span_id=parent_span_id,
                    start_time=started,
                    end_time=now(),
                    attributes=attribute_strings(opened.attributes),
                    generation=opened.generation,
                    status=opened.status,
                    status_message=opened.status_message,
                ),
            )

    # --- sequence ids --------------------------------------------------------------------------------

    def take(self) -> int:
        """Take an id for something that begins now; `put`, `lose` or the end of the attempt settles it."""
        with self._lock:
            if self._is_closed:
                raise AttemptClosedError(f"attempt {self.attempt_id} has ended")
            sequence_id = self._sequencer.next()
            self._taken.add(sequence_id)
            return sequence_id

    def put(self, sequence_id: int, build: Callable[[int], Span | Reward]) -> None:
        """Publish what became of a taken id. If `build` raises, the id is void."""
        with self._lock:
            if sequence_id not in self._taken:
                raise AttemptClosedError(f"attempt {self.attempt_id} has ended")
            try:
                record = build(sequence_id)
            except BaseException:
                self._void(sequence_id)
                raise
            self._taken.discard(sequence_id)
            try:
                self._publish(record)
            except RecordTooLargeError:
                raise
            except BadRecordError:
                self._void(sequence_id)
                raise

    def lose(self, sequence_id: int) -> None:
        """Something happened under this id and can't be recorded: leave a hole."""
        with self._lock:
            self._taken.discard(sequence_id)

    def close(self) -> int:
        """Take no more events; void the ids that are still open. Returns the last id handed out."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for sequence_id in sorted(self._taken):
                    self._void(sequence_id)
            return self._sequencer.last

    async def acknowledged(self) -> None:
        """Return when Kafka has every event that was emitted so far."""
        await self._outbox.drained()

    @property
    def failure(self) -> str | None:
        """What Kafka did not take of the events, in words."""
        return self._outbox.failure

    # --- within --------------------------------------------------------------------------------------

    def _emit(self, build: Callable[[int], Span | Reward]) -> int:
        with self._lock:
            sequence_id = self.take()
            self.put(sequence_id, build)
            return sequence_id

    def _publish(self, record: Record) -> None:
        self._outbox.sent()
        try:
            self._outlet.publish(record, self._outbox.settle)
        except BaseException:
            # Told to the caller; nothing is on its way.
            self._outbox.settle()
            raise

    def _void(self, sequence_id: int) -> None:
        """A void that can't be published leaves a hole, which says the same, less well."""
        self._taken.discard(sequence_id)
        time = now()
        void = self._span(sequence_id, kind="void", span_id=new_span_id(), start_time=time, end_time=time)
        try:
            self._publish(void)
        except HeadraceError:
            return

    def _span(self, sequence_id: int, **fields: Any) -> Span:  # noqa: ANN401  checked by Span
        known = {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "sequence_id": sequence_id,
            "trace_id": self.trace_id,
        }
        return Span(**(known | fields))


def new_span_id() -> str:
    """Random, as W3C's trace context has them."""
    return os.urandom(8).hex()
