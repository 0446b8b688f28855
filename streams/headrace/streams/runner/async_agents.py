"""Async functions, all attempts in one event loop of their own, apart from the runner's.

An agent that blocks holds up the others' work, and not the runner's: heartbeats and deadlines go on. A loop
that does not hear a stop within its grace is left behind, and new attempts get a new one.
"""

import asyncio
import threading
from contextvars import copy_context

import structlog

from headrace.streams.runner.agent import Agent, describe_error
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.context import attempt_context
from headrace.streams.runner.execution import Done
from headrace.streams.runner.rewards import read_returned

log = structlog.get_logger(__name__)


class _LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="headrace-agents", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


class AsyncExecution:
    def __init__(self, agents: "AsyncAgents", thread: _LoopThread, attempt: Attempt, done: Done) -> None:
        self._agents = agents
        self._thread = thread
        self._attempt = attempt
        self._done = done
        self._task: asyncio.Task[str | None] | None = None
        self._heard_stop = False
        thread.loop.call_soon_threadsafe(self._begin)

    def stop(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._stop)

    def abandon(self) -> None:
        if not self._heard_stop:
            self._agents.replace(self._thread)

    def _begin(self) -> None:
        self._task = self._thread.loop.create_task(self._run(), context=copy_context())
        self._task.add_done_callback(self._finish)

    def _stop(self) -> None:
        self._heard_stop = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> str | None:
        try:
            with attempt_context(self._attempt) as attempt:
                attempt.emit_rewards(read_returned(await self._agents.agent(attempt.task, attempt.resources)))
        except BaseException as raised:  # noqa: BLE001  SystemExit would end the loop of all
            return describe_error(raised)
        return None

    def _finish(self, task: asyncio.Task[str | None]) -> None:
        # Cancelled is one that was stopped before its first step.
        self._done("CancelledError" if task.cancelled() else task.result())


class AsyncAgents:
    """An Executor."""

    stop_grace_s = 1.0

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._thread = _LoopThread()

    def start(self, attempt: Attempt, done: Done) -> AsyncExecution:
        return AsyncExecution(self, self._thread, attempt, done)

    def replace(self, blocked: _LoopThread) -> None:
        """Leave a loop that does not answer behind; called by the runner's thread only."""
        if blocked is self._thread:
            log.error("an agent blocks the event loop of async agents; new attempts get another")
            self._thread = _LoopThread()
