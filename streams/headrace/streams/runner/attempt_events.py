"""AttemptEvents: the events of one attempt, from one process, numbered and published.

Every event takes the next sequence id and is handed to Kafka before the call returns (G2). An id that was
handed out and came to nothing becomes a void span. What happened and could not be recorded leaves a hole, so
that the attempt is never trained on (G3). Once closed, it takes no more events.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Literal

from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import OUTCOME, Generation, Record, Reward, Span, now
from headrace.streams.client.errors import RecordTooLargeError
from headrace.streams.runner.attributes import attribute_strings
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Delivered, Outlet
from headrace.streams.runner.rewards import Rewards, finite
from headrace.streams.runner.sequencer import Sequencer

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


class AttemptEvents:
    """Safe to share between threads."""

    def __init__(
        self, rollout_id: str, attempt_id: str, *, outlet: Outlet, outbox: Outbox, sequencer: Sequencer
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.trace_id = attempt_id.replace("-", "")
        self._outlet = outlet
        self._outbox = outbox
        self._sequencer = sequencer
        self._lock = threading.RLock()
        self._taken: set[int] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- events --------------------------------------------------------------------------------------

    def emit_reward(
        self, value: float, name: str = OUTCOME, about: int | None = None, *, reward_id: str | None = None
    ) -> int:
        """Judge the attempt, or the call that has sequence id `about`; return the reward's sequence id.

        InvalidRewardError for a value that is not finite or a call that was not made: nothing is recorded.
        AttemptClosedError after the end.
        """
        number = finite(value, name)
        last = self._sequencer.last
        if about is not None and (about < 1 or (about > last and not self._sequencer.is_shared)):
            raise _about_nothing(name, about, last)

        def build(sequence_id: int) -> Reward:
            if about is not None and about >= sequence_id:
                raise _about_nothing(name, about, sequence_id - 1)
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
        """Take an id for something that begins now; `put`, `lose` or the end of the attempt settles it.

        With a shared sequencer it may take a while, and fail (Sequencer.next).
        """
        with self._lock:
            if self._is_closed:
                raise self._closed_error()
            if not self._sequencer.is_shared:
                sequence_id = self._sequencer.next()
                self._taken.add(sequence_id)
                return sequence_id
            # Whoever waits for acknowledgements waits for the answer too: the id may have to be voided.
            self._outbox.sent()
        try:
            return self._keep(self._sequencer.next())
        finally:
            self._outbox.settle()

    def put(
        self,
        sequence_id: int,
        build: Callable[[int], Span | Reward],
        delivered: Delivered | None = None,
    ) -> None:
        """Publish what became of a taken id. If `build` raises, the id is void.

        `delivered` hears what became of the record if this returns, from any thread; it must not wait for
        anything.
        """
        with self._lock:
            if sequence_id not in self._taken:
                raise self._closed_error()
            try:
                record = build(sequence_id)
            except BaseException:
                self._void(sequence_id)
                raise
            self._taken.discard(sequence_id)
            try:
                self._publish(record, delivered)
            except RecordTooLargeError:
                raise
            except BadRecordError:
                self._void(sequence_id)
                raise

    def lose(self, sequence_id: int) -> None:
        """Something happened under this id and can't be recorded: leave a hole."""
        with self._lock:
            self._taken.discard(sequence_id)

    def void(self, sequence_id: int) -> str | None:
        """Nothing came of a taken id. Why that could not be published, if so: `failure` tells of it as well,
        and who wants to can publish `void_span` later.
        """
        with self._lock:
            return self._void(sequence_id) if sequence_id in self._taken else None

    def give(self, sequence_id: int) -> None:
        """From now on the caller accounts for this id, and publishes under it by himself."""
        self.lose(sequence_id)

    def note_lost(self, why: str) -> None:
        """Something under an id that was given away was not recorded: it is a failure of the attempt."""
        self._outbox.sent()
        self._outbox.settle(why)

    def void_span(self, sequence_id: int) -> Span:
        """What accounts for an id that came to nothing."""
        time = now()
        return self._span(sequence_id, kind="void", span_id=new_span_id(), start_time=time, end_time=time)

    def close(self) -> int:
        """Take no more events; void the ids that are still open. Returns the last id handed out."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for sequence_id in sorted(self._taken):
                    self._void(sequence_id)
            return self._sequencer.last

    async def acknowledged(self) -> None:
        """Return when Kafka has every event that was emitted so far, or `failure` tells of it."""
        await self._outbox.drained()

    @property
    def failure(self) -> str | None:
        """What was not recorded of the events, in words."""
        return self._outbox.failure or self._sequencer.failure

    # --- within --------------------------------------------------------------------------------------

    def _emit(self, build: Callable[[int], Span | Reward]) -> int:
        sequence_id = self.take()
        self.put(sequence_id, build)
        return sequence_id

    def _keep(self, sequence_id: int) -> int:
        """It is ours from now on; void, if the attempt was closed while it was asked for."""
        with self._lock:
            if self._is_closed:
                self._void(sequence_id)
                raise self._closed_error()
            self._taken.add(sequence_id)
            return sequence_id

    def _closed_error(self) -> AttemptClosedError:
        return AttemptClosedError(f"attempt {self.attempt_id} has ended")

    def _publish(self, record: Record, delivered: Delivered | None = None) -> None:
        self._outbox.sent()
        try:
            self._outlet.publish(record, self._settled(delivered))
        except BaseException:
            # Told to the caller; nothing is on its way.
            self._outbox.settle()
            raise

    def _settled(self, delivered: Delivered | None) -> Delivered:
        if delivered is None:
            return self._outbox.settle

        def settle(why_not: str | None) -> None:
            self._outbox.settle(why_not)
            delivered(why_not)

        return settle

    def _void(self, sequence_id: int) -> str | None:
        """A void that can't be published leaves a hole, which says the same, less well."""
        self._taken.discard(sequence_id)
        try:
            self._publish(self.void_span(sequence_id))
        except HeadraceError as error:
            self.note_lost(str(error))
            return str(error)
        return None

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


def _about_nothing(name: str, about: int, last: int) -> InvalidRewardError:
    return InvalidRewardError(f"reward {name!r} is about sequence id {about}, and {last} is the last")
