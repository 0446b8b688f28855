"""Plain functions, each attempt in a thread of its own while it runs.

A thread can't be stopped from outside: one that hangs is left behind, and its attempt takes no more events.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue

from headrace.streams.runner.agent import Agent, describe_error
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.context import attempt_context
from headrace.streams.runner.execution import Done
from headrace.streams.runner.rewards import read_returned

Work = Callable[[], None]


class DaemonThreads:
    """Runs each piece of work at once, in an idle thread or a new one; none of them keeps the process.

    Not a ThreadPoolExecutor: that waits for its threads at the interpreter's end, also for those that hang.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._num_idle = 0
        self._work: SimpleQueue[Work] = SimpleQueue()

    def run(self, work: Work) -> None:
        """RuntimeError if there can be no more threads."""
        with self._lock:
            has_idle = self._num_idle > 0
            if has_idle:
                self._num_idle -= 1
        if not has_idle:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            work()
            del work  # it holds on to a task
            with self._lock:
                self._num_idle += 1


class ThreadExecution:
    def stop(self) -> None:
        """A thread hears nothing."""

    def abandon(self) -> None:
        """It goes on as long as it likes."""


class ThreadAgents:
    """An Executor."""

    stop_grace_s = 0.0

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._threads = DaemonThreads("headrace-agent")

    def start(self, attempt: Attempt, done: Done) -> ThreadExecution:
        context = copy_context()
        self._threads.run(lambda: context.run(self._run, attempt, done))
        return ThreadExecution()

    def _run(self, attempt: Attempt, done: Done) -> None:
        error = None
        try:
            with attempt_context(attempt):
                attempt.emit_rewards(read_returned(self._agent(attempt.task, attempt.resources)))
        except BaseException as raised:  # noqa: BLE001  SystemExit too: an agent does not end the runner
            error = describe_error(raised)
        done(error)
