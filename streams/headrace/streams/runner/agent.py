"""Agents: functions of a task, marked with `@agent` and found by `MODULE:NAME`."""

import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headrace.schemas.records import ResourceVersion
from headrace.streams.runner.attributes import whole_text
from headrace.streams.runner.errors import AgentNotFoundError

MAX_ERROR_CHARS = 4000

Resources = Mapping[str, ResourceVersion]
Reward = float | None | Mapping[str, float | None]
SyncFunction = Callable[[Any, Resources], Reward]
AsyncFunction = Callable[[Any, Resources], Awaitable[Reward]]


@dataclass(frozen=True)
class Agent:
    """A function `(task, resources) -> reward`; still callable as what it was, for tests of its own."""

    function: Callable[[Any, Resources], Any]
    name: str

    @property
    def is_async(self) -> bool:
        call = getattr(type(self.function), "__call__", None)  # noqa: B004  an instance with an async __call__
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def __call__(self, task: Any, resources: Resources | None = None) -> Any:  # noqa: ANN401
        return self.function(task, resources or {})


def agent(function: Callable[[Any, Resources], Any]) -> Agent:
    """Mark a function, plain or async, as an agent: it takes a task (parsed JSON) and resources by name.

    The number that it returns is the attempt's outcome reward; a dict holds rewards by name; None is none,
    and not 0. An exception is a failed attempt. `headrace runner MODULE:NAME` runs it.
    """
    return Agent(function, getattr(function, "__qualname__", type(function).__name__))


def load_agent(place: str) -> Agent:
    """The agent at `MODULE:NAME`, which may be any callable; AgentNotFoundError says what is wrong."""
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise AgentNotFoundError(
            f"{place!r} names no agent: MODULE:NAME is expected, as in `my.agents:solve`"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise AgentNotFoundError(
            f"{place}: no module {error.name!r} in {Path.cwd()} or on the path"
        ) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Agent):
        return found
    if not callable(found):
        there = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
        raise AgentNotFoundError(
            f"{place}: no agent {name!r} there; agents in it: {', '.join(there) or 'none'}"
        )
    return agent(cast("SyncFunction | AsyncFunction", found))


def describe_error(error: BaseException) -> str:
    """What an attempt's `error` says of an exception, and where it was raised."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        last = frames[-1]
        words = f"{words[:MAX_ERROR_CHARS]} ({Path(last.filename).name}:{last.lineno} in {last.name})"
    return bounded(words)


def bounded(words: str) -> str:
    """As much of it as an event carries, in text that Avro can hold."""
    return whole_text(words[:MAX_ERROR_CHARS])
