"""How agents are run: what an executor promises to the runner."""

from collections.abc import Callable
from typing import Protocol

from headrace.streams.runner.attempt import Attempt

Done = Callable[[str | None], object]
"""Called once, from any thread: with None when the agent has finished, else with what went wrong.

The rewards that it gave are emitted before.
"""


class Execution(Protocol):
    """An agent at work on one attempt."""

    def stop(self) -> None:
        """Ask it to end; called once, by the runner. `done` is called when it has, if ever."""

    def abandon(self) -> None:
        """It did not end within the grace: nobody waits for it any more."""


class Executor(Protocol):
    @property
    def stop_grace_s(self) -> float:
        """How long a stopped agent is waited for, before its attempt is closed."""

    def start(self, attempt: Attempt, done: Done) -> Execution:
        """Begin at once. What goes wrong, also at the start, is told to `done`."""
