"""Mailbox: calls from any thread into an event loop, many at one wake-up."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

Call = Callable[[], object]


class Mailbox:
    """Calls run in the order in which they were posted; of one that raises the loop's handler hears, and the
    next run. After the loop has closed they are dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Call] = deque()
        self._lock = threading.Lock()
        self._is_scheduled = False

    def post(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            # The loop has closed: nobody is left to care.
            self._calls.clear()

    def _run(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, deque()
            self._is_scheduled = False
        for call in calls:
            try:
                call()
            except Exception as error:  # noqa: BLE001  whoever posted the next has nothing to do with it
                context = {"message": "a posted call raised", "exception": error}
                self._loop.call_exception_handler(context)
