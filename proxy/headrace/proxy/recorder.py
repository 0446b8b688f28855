"""Recorder: a call's spans into Kafka, and word of when Kafka has them all (G1).

What Kafka did not take in time is void: the agent got an error instead of the answer. The voids are published
until Kafka takes them, and while one waits, or an acknowledgement is late, new calls are refused: nothing is
generated that could not be recorded.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from headrace.proxy.problem import Problem
from headrace.schemas.errors import FatalError, HeadraceError
from headrace.schemas.records import Record, Span
from headrace.streams.client.errors import RecordTooLargeError
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outlet import Delivered, Outlet

RETRY_AFTER_S = 2
_RETRY_S = 1.0
_FULL = "the buffer of records for Kafka is full"

log = structlog.get_logger(__name__)


class Voids(Protocol):
    """Of an attempt: runner.attempt_events.AttemptEvents."""

    def void_span(self, sequence_id: int) -> Span:
        """What accounts for an id that came to nothing."""

    def note_lost(self, why: str) -> None:
        """Something of the attempt was not recorded: it must not end as if it were whole."""


class UnrecordedError(Exception):
    """Kafka did not take a record; the message says why."""


class Recorder:
    """Used in the mailbox's loop only."""

    def __init__(
        self,
        outlet: Outlet,
        mailbox: Mailbox,
        *,
        late_s: float,
        failed: Callable[[FatalError], object] = lambda _: None,
    ) -> None:
        """`late_s`: an acknowledgement that takes longer means that Kafka is in trouble. `failed` hears of a
        producer that will take no record any more: only a new process can.
        """
        self._outlet = outlet
        self._mailbox = mailbox
        self._late_s = late_s
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._since: dict[object, float] = {}
        """When each record that is on its way was handed over; in that order."""
        self._unsettled: dict[tuple[str, int], tuple[Voids, str]] = {}
        self._settling: asyncio.Task[None] | None = None

    @property
    def num_pending(self) -> int:
        return len(self._since)

    def trouble(self) -> Problem | None:
        """Why no call can be taken now; None if it can."""
        oldest = next(iter(self._since.values()), None)
        if self._unsettled:
            why = f"Kafka did not take {len(self._unsettled)} records"
        elif not self._outlet.has_room():
            why = _FULL
        elif oldest is not None and self._loop.time() - oldest > self._late_s:
            why = f"Kafka has not acknowledged for {self._loop.time() - oldest:.1f} s"
        else:
            return None
        return Problem(
            503, f"{why}: calls can't be recorded, so none is made", "kafka_unavailable", RETRY_AFTER_S
        )

    async def record(self, spans: Sequence[Span], voids: Voids) -> None:
        """Return when Kafka has all of them. UnrecordedError if not; their ids are then void."""
        waits = [self._publish(span) for span in spans]
        results = await asyncio.gather(*waits, return_exceptions=True)
        failed = [
            (span, str(result))
            for span, result in zip(spans, results, strict=True)
            if isinstance(result, BaseException)
        ]
        if not failed:
            return
        why = failed[0][1]
        voids.note_lost(f"the record of a call was not acknowledged: {why}")
        for span, _ in failed:
            self._settle(span.attempt_id, span.sequence_id or 0, voids, why)
        raise UnrecordedError(why)

    def void_later(self, attempt_id: str, sequence_id: int, voids: Voids, why: str) -> None:
        """An id that came to nothing, whose void Kafka does not take for now: as what was not recorded."""
        self._settle(attempt_id, sequence_id, voids, why)

    async def close(self) -> None:
        """Stop settling; what is unsettled then is a hole, which says the same, less well (G3)."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)

    # --- publishing ----------------------------------------------------------------------------------

    async def _publish(self, record: Record) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._since[done] = self._loop.time()

        def settle(why_not: str | None) -> None:
            if done.done():
                return
            if why_not is None:
                done.set_result(None)
            else:
                done.set_exception(UnrecordedError(why_not))

        def delivered(why_not: str | None) -> None:
            self._mailbox.post(lambda: settle(why_not))

        try:
            self._hand_over(record, delivered)
            await done
        finally:
            del self._since[done]

    def _hand_over(self, record: Record, delivered: Delivered) -> None:
        if not self._outlet.has_room():
            raise UnrecordedError(_FULL)
        try:
            try:
                self._outlet.publish(record, delivered)
            except RecordTooLargeError:
                # The words of a call may be too large to keep; its ids hardly are.
                self._outlet.publish(_without_words(record), delivered)
        except HeadraceError as error:
            if isinstance(error, FatalError):
                self._failed(error)
            raise UnrecordedError(str(error)) from error

    # --- what was not recorded -----------------------------------------------------------------------

    def _settle(self, attempt_id: str, sequence_id: int, voids: Voids, why: str) -> None:
        if not self._unsettled:
            log.error("Kafka does not take records: calls are refused until it does", reason=why)
        self._unsettled[attempt_id, sequence_id] = voids, why
        if self._settling is None or self._settling.done():
            self._settling = self._loop.create_task(self._settle_all())

    async def _settle_all(self) -> None:
        while self._unsettled:
            waiting = list(self._unsettled.items())
            results = await asyncio.gather(
                *(self._publish(voids.void_span(number)) for (_, number), (voids, _) in waiting),
                return_exceptions=True,
            )
            for (place, _), result in zip(waiting, results, strict=True):
                if not isinstance(result, Exception):
                    self._unsettled.pop(place)
            if self._unsettled:
                await asyncio.sleep(_RETRY_S)
        log.info("Kafka takes records again")


def _without_words(record: Record) -> Record:
    assert isinstance(record, Span)  # noqa: S101  only spans are recorded here
    assert record.generation is not None  # noqa: S101  a void is small
    generation = record.generation.model_copy(update={"request": "", "response": ""})
    attributes = record.attributes | {"headrace.left_out": "request,response: too large"}
    return record.model_copy(update={"generation": generation, "attributes": attributes})
