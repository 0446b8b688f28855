"""Outbox: how much of an attempt is on its way, records above all, and a wait until nothing is (G1)."""

import asyncio
import threading

from headrace.streams.runner.mailbox import Mailbox


class Outbox:
    """Counted from any thread, waited for in the mailbox's loop."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._pending = 0
        self._num_failed = 0
        self._why = ""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def failure(self) -> str | None:
        """What Kafka did not take, in words; None if it took all so far."""
        if not self._num_failed:
            return None
        return f"{self._num_failed} records were not acknowledged: {self._why}"

    def sent(self) -> None:
        with self._lock:
            self._pending += 1

    def settle(self, why_not: str | None = None) -> None:
        """One record less, acknowledged or, with a reason, failed for good."""
        with self._lock:
            self._pending -= 1
            if why_not is not None:
                self._num_failed += 1
                self._why = why_not
            if self._pending or not self._waiting:
                return
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            self._mailbox.post(lambda future=future: future.done() or future.set_result(None))  # type: ignore[misc]

    async def drained(self) -> None:
        """Return when no record is on its way."""
        with self._lock:
            if not self._pending:
                return
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
        await future
