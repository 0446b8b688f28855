"""Attempts: those that are open here, each with its one sequencer (G2), and how they end.

An attempt ends when its runner closes it, when the log says that it has ended (its runner may be dead), or
when nobody has used it for long. Its calls are cut, and their spans say so; then no id is handed out.
A proxy that dies takes its open attempts with it: a new one does not know them, so that whoever runs them
fails them, and none ends with holes unnoticed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from headrace.proxy.keys import digest, new_token
from headrace.proxy.problem import Problem, RefusedError
from headrace.proxy.responses.store import ResponseBudget, ResponseStore
from headrace.proxy.settings import ProxySettings
from headrace.streams.runner.attempt_events import AttemptEvents
from headrace.streams.runner.attempt_log import LoggedEvent
from headrace.streams.runner.attempt_requests import AttemptRequests
from headrace.streams.runner.errors import AttemptClosedError
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.sequencer import Closed, LocalSequencer

_REMEMBERED = 50_000
"""Closed attempts whose end can be asked for again."""
_SWEEP_S = 10.0

PROXY_STOPPED = "proxy_stopped"
"""Why a call is cut that the end of the process could not wait for."""

log = structlog.get_logger(__name__)


class Cuttable(Protocol):
    """A running call."""

    def cut(self, why: str) -> None:
        """End it early; its span says why."""


class OpenAttempt:
    """Used in one event loop."""

    def __init__(
        self,
        events: AttemptEvents,
        sequencer: LocalSequencer,
        responses: ResponseStore,
        *,
        agent: str,
        token_digest: str,
        now_s: float,
    ) -> None:
        self.events = events
        self.requests = AttemptRequests(events)
        self.responses = responses
        self.agent = agent
        self.token_digest = token_digest
        self.used_at_s = now_s
        self.closing: asyncio.Task[Closed] | None = None
        self._sequencer = sequencer
        self._calls: set[Cuttable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def attempt_id(self) -> str:
        return self.events.attempt_id

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    def next(self) -> int:
        """An id for whoever runs the attempt; they account for it."""
        return self._sequencer.next()

    def begin(self, call: Cuttable) -> None:
        """AttemptClosedError once it is closing: what began now would be cut by nobody."""
        if self.closing is not None:
            raise AttemptClosedError(f"attempt {self.attempt_id} has ended")
        self._calls.add(call)
        self._idle.clear()

    def end(self, call: Cuttable) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._idle.set()

    def cut_calls(self, why: str) -> None:
        for call in list(self._calls):
            call.cut(why)

    async def finish(self) -> Closed:
        """Cut what runs, account for every id that is ours, and wait until Kafka has all of it."""
        self.cut_calls("attempt_closed")
        await self._idle.wait()
        last = self.events.close()
        await self.events.acknowledged()
        return Closed(last, self.events.failure)


class Attempts:
    """Used in the mailbox's loop, but for `rollouts`, which others look into."""

    def __init__(
        self,
        settings: ProxySettings,
        outlet: Outlet,
        mailbox: Mailbox,
        clock: Callable[[], float] | None = None,
        on_end: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`on_end` hears the id of each attempt that is over."""
        self.rollouts: dict[bytes, set[str]] = {}
        """The open attempts of each rollout, by the log's key."""
        self._settings = settings
        self._outlet = outlet
        self._mailbox = mailbox
        self._clock = clock or asyncio.get_running_loop().time
        self._on_end = on_end
        self._responses = ResponseBudget(settings.max_kept_response_bytes)
        self._open: dict[str, OpenAttempt] = {}
        self._closed: OrderedDict[str, Closed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, rollout_id: str, attempt_id: str, agent: str = "") -> str:
        """Its token. RefusedError 409 if it was open before, 429 if there are too many."""
        if attempt_id in self._open or attempt_id in self._closed:
            raise RefusedError(Problem(409, "this attempt was opened before", "attempt_known"))
        if len(self._open) >= self._settings.max_attempts:
            raise RefusedError(
                Problem(429, f"{len(self._open)} attempts are open, which is all", "too_many_attempts", 5)
            )
        token, sequencer = new_token(), LocalSequencer()
        events = AttemptEvents(
            rollout_id,
            attempt_id,
            outlet=self._outlet,
            outbox=Outbox(self._mailbox),
            sequencer=sequencer,
        )
        self._open[attempt_id] = OpenAttempt(
            events,
            sequencer,
            ResponseStore(budget=self._responses),
            agent=agent,
            token_digest=digest(token),
            now_s=self._clock(),
        )
        self.rollouts.setdefault(rollout_id.encode(), set()).add(attempt_id)
        return token

    def get(self, attempt_id: str) -> OpenAttempt:
        """RefusedError 404 if it was never opened here, 410 if it has ended."""
        attempt = self._open.get(attempt_id)
        if attempt is None or attempt.closing is not None:
            if attempt is not None or attempt_id in self._closed:
                raise RefusedError(Problem(410, "this attempt has ended", "attempt_ended"))
            raise RefusedError(
                Problem(
                    404, "this proxy has no attempt of that id: it was not opened here", "attempt_unknown"
                )
            )
        attempt.used_at_s = self._clock()
        return attempt

    async def close(self, attempt_id: str) -> Closed:
        """How it ended, however often it is asked. RefusedError 404, or 503 if Kafka takes too long."""
        closed = self._closed.get(attempt_id)
        if closed is not None:
            return closed
        attempt = self._open.get(attempt_id)
        if attempt is None:
            self.get(attempt_id)
            raise AssertionError
        task = self._begin_closing(attempt)
        done, _ = await asyncio.wait([task], timeout=self._settings.close_timeout_s)
        if not done:
            raise RefusedError(
                Problem(503, "Kafka has not taken all events of the attempt yet", "kafka_unavailable", 2)
            )
        return task.result()

    def hear(self, logged: Iterable[LoggedEvent]) -> None:
        """What the attempts log says: an attempt that has ended there goes no further here."""
        for event in logged:
            attempt = self._open.get(event.attempt_id)
            if event.kind == "ended" and attempt is not None:
                self._begin_closing(attempt)

    async def sweep(self) -> None:
        """Until cancelled, close what nobody has used for long."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.close_idle()

    def close_idle(self) -> int:
        """How many were closed."""
        before = self._clock() - self._settings.idle_attempt_s
        idle = [each for each in self._open.values() if each.used_at_s < before and not each.num_calls]
        for attempt in idle:
            if attempt.closing is None:
                log.warning("attempt closed: nobody used it", attempt_id=attempt.attempt_id)
                self._begin_closing(attempt)
        return len(idle)

    def cut_calls(self) -> None:
        """The process is to end, and has waited for them."""
        for attempt in self._open.values():
            attempt.cut_calls(PROXY_STOPPED)

    async def close_all(self, timeout_s: float) -> Mapping[str, OpenAttempt]:
        """At the end of the process: what could not be closed in time."""
        tasks = [self._begin_closing(attempt) for attempt in list(self._open.values())]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return dict(self._open)

    def _begin_closing(self, attempt: OpenAttempt) -> "asyncio.Task[Closed]":
        if attempt.closing is None:
            attempt.closing = asyncio.get_running_loop().create_task(self._close(attempt))
        return attempt.closing

    async def _close(self, attempt: OpenAttempt) -> Closed:
        closed = await attempt.finish()
        self._closed[attempt.attempt_id] = closed
        while len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        del self._open[attempt.attempt_id]
        attempt.responses.close()
        self._on_end(attempt.attempt_id)
        key = attempt.events.rollout_id.encode()
        of_rollout = self.rollouts[key]
        of_rollout.discard(attempt.attempt_id)
        if not of_rollout:
            del self.rollouts[key]
        return closed
