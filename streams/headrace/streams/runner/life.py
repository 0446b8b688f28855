"""Life: one attempt from its start in the log to its end there.

The agent begins when the log has the start and the sequencer is open. The end is published when Kafka has
every event before it (G1, G3), and states the last sequence id, if that is known. Of several reasons to end
the first counts.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import AttemptEvent, AttemptOrigin, now
from headrace.schemas.records.rollout import AttemptOutcome
from headrace.streams.runner.agent import bounded, describe_error
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.errors import RunnerFailedError
from headrace.streams.runner.execution import Execution, Executor
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.sequencer import Closed, Opened, Sequencer

BEATS = 3
"""Heartbeats within the time after which silence counts as death."""
_SHORTEST_BEAT_S = 0.05

log = structlog.get_logger(__name__)


class Ending(NamedTuple):
    status: AttemptOutcome
    error: str | None = None


class Life:
    """Used in the mailbox's loop only."""

    def __init__(
        self,
        attempt: Attempt,
        runner_id: str,
        *,
        sequencer: Sequencer,
        outlet: Outlet,
        executor: Executor,
        mailbox: Mailbox,
        abandoned: Callable[[Execution], None],
        came_back: Callable[[Execution], None],
    ) -> None:
        """`abandoned` hears of agents that did not end when told to, `came_back` of those that then did."""
        self.attempt = attempt
        self.is_claimed = False
        """The log has our start before anyone else's claim to be this attempt."""
        self.over = asyncio.Event()
        """Its slot is free."""
        self._runner_id = runner_id
        self._sequencer = sequencer
        self._outlet = outlet
        self._executor = executor
        self._mailbox = mailbox
        self._abandoned = abandoned
        self._came_back = came_back
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self._agent_ended: asyncio.Future[str | None] = self._loop.create_future()
        self._execution: Execution | None = None
        self._is_abandoned = False
        self._timers: list[asyncio.TimerHandle] = []
        self.began = self._loop.time()

    @property
    def rollout_id(self) -> str:
        return self.attempt.rollout_id

    def end(self, status: AttemptOutcome, error: str) -> None:
        """End it; no effect on one that is ending already."""
        if not self._ending.done():
            self._ending.set_result(Ending(status, error))

    async def run(self, started: Callable[[], None], ended: Callable[[], None]) -> Ending:
        """Live it; `started` is called, from any thread, when the log has its start, `ended` in this loop
        when the end is published. Returns after Kafka has acknowledged that. RunnerFailedError when Kafka
        refuses the start or the end, HeadraceError when it takes nothing more.
        """
        try:
            await self._publish(self._started(), started)
            self._start_clocks()
            await self._open()
            if not self._ending.done():
                self._start_agent()
            ending = await self._ending
            await self._stop_agent()
            closed = await self._close()
            ending, last_sequence_id = self._judge(ending, closed), closed.last_sequence_id
        finally:
            for timer in self._timers:
                timer.cancel()
        self._log(ending, last_sequence_id)
        await self._publish(self._ended(ending, last_sequence_id), then=ended)
        return ending

    # --- sequence ids --------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Open the sequencer, unless the attempt ends meanwhile; where that can't be, the attempt fails."""
        if self._ending.done():
            return
        opening = asyncio.ensure_future(self._sequencer.open(self.attempt.record, self.attempt.attempt_id))
        try:
            waits: list[asyncio.Future[Opened] | asyncio.Future[Ending]] = [opening, self._ending]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return
            opened = opening.result()
        except HeadraceError as error:
            self.end("failed", str(error))
            return
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if opened.base_url is not None:
            self.attempt.base_url, self.attempt.api_key = opened.base_url, opened.api_key

    async def _close(self) -> Closed:
        self.attempt.close()
        closed = await self._sequencer.close()
        # After it: an id that was on its way to a thread of the agent's is void only now.
        await self.attempt.acknowledged()
        return closed

    # --- the agent -----------------------------------------------------------------------------------

    def _start_agent(self) -> None:
        try:
            self._execution = self._executor.start(self.attempt, self._agent_is_done)
        except (OSError, RuntimeError) as error:
            # No more threads, files or memory.
            self._ending.set_result(Ending("failed", describe_error(error)))

    def _agent_is_done(self, error: str | None) -> None:
        """From any thread."""
        self._mailbox.post(lambda: self._take_result(error))

    def _take_result(self, error: str | None) -> None:
        if not self._agent_ended.done():
            self._agent_ended.set_result(error)
        if self._is_abandoned and self._execution is not None:
            self._came_back(self._execution)
        if not self._ending.done():
            self._ending.set_result(Ending("succeeded") if error is None else Ending("failed", error))

    async def _stop_agent(self) -> None:
        """Where it was not the agent that ended it: tell it, and wait within the grace."""
        if self._execution is None or self._agent_ended.done():
            return
        self._execution.stop()
        if self._executor.stop_grace_s > 0:
            await asyncio.wait([self._agent_ended], timeout=self._executor.stop_grace_s)
        if not self._agent_ended.done():
            self._is_abandoned = True
            self._execution.abandon()
            self._abandoned(self._execution)

    def _judge(self, ending: Ending, closed: Closed) -> Ending:
        failure = self.attempt.failure or closed.failure
        if failure is not None and ending.status == "succeeded":
            return Ending("failed", failure)
        return ending

    # --- clocks --------------------------------------------------------------------------------------

    def _start_clocks(self) -> None:
        config = self.attempt.record.config
        words = f"the agent did not end within {config.timeout_s:g} s"
        self._timers = [
            self._loop.call_later(config.timeout_s, self.end, "timeout", words),
            self._loop.call_later(self._beat_s, self._beat),
        ]

    @property
    def _beat_s(self) -> float:
        return max(self.attempt.record.config.heartbeat_timeout_s / BEATS, _SHORTEST_BEAT_S)

    def _beat(self) -> None:
        self._timers[1] = self._loop.call_later(self._beat_s, self._beat)
        if not self._outlet.has_room():
            # Kafka is away; what waits in the buffer is more than a sign of life.
            return
        try:
            self._outlet.publish(self._event(kind="heartbeat", status="running"), lambda _: None)
        except HeadraceError as error:
            log.warning("heartbeat lost", attempt_id=self.attempt.attempt_id, error=type(error).__name__)

    # --- events --------------------------------------------------------------------------------------

    async def _publish(
        self,
        event: AttemptEvent,
        acknowledged: Callable[[], None] | None = None,
        *,
        then: Callable[[], None] | None = None,
    ) -> None:
        done: asyncio.Future[str | None] = self._loop.create_future()

        def delivered(why_not: str | None) -> None:
            if why_not is None and acknowledged is not None:
                acknowledged()
            self._mailbox.post(lambda: _settle(done, why_not))

        if self._outlet.has_room():
            self._outlet.publish(event, delivered)
        else:
            await asyncio.to_thread(self._outlet.publish, event, delivered)
        if then is not None:
            then()
        why_not = await done
        if why_not is not None:
            raise RunnerFailedError(f"Kafka did not take the {event.kind} event of an attempt: {why_not}")

    def _started(self) -> AttemptEvent:
        given = {name: version.version for name, version in self.attempt.resources.items()}
        origin = AttemptOrigin.of(self.attempt.record).model_copy(update={"resources": given})
        return self._event(kind="started", status="running", origin=origin)

    def _ended(self, ending: Ending, last_sequence_id: int | None) -> AttemptEvent:
        error = bounded(ending.error) if ending.error is not None else None
        return self._event(kind="ended", status=ending.status, error=error, last_sequence_id=last_sequence_id)

    def _event(self, **fields: object) -> AttemptEvent:
        known: dict[str, object] = {
            "rollout_id": self.attempt.rollout_id,
            "attempt_id": self.attempt.attempt_id,
            "attempt": self.attempt.number,
            "runner_id": self._runner_id,
            "time": now(),
        }
        return AttemptEvent(**(known | fields))

    def _log(self, ending: Ending, last_sequence_id: int | None) -> None:
        # Not the error: it may quote what the agent was given.
        report = log.debug if ending.status == "succeeded" else log.info
        report(
            "attempt ended",
            rollout_id=self.rollout_id,
            attempt_id=self.attempt.attempt_id,
            attempt=self.attempt.number,
            status=ending.status,
            num_events=last_sequence_id,
            seconds=round(self._loop.time() - self.began, 3),
        )


def _settle(done: asyncio.Future[str | None], why_not: str | None) -> None:
    if not done.done():
        done.set_result(why_not)
