"""Tasks as a file has them: one JSON value a line."""

import json
from collections.abc import Iterable, Sequence

from headrace.schemas.errors import FatalError
from headrace.streams.client.rollouts import JSON


def read_tasks(lines: Iterable[bytes]) -> list[JSON]:
    """One JSON value a line; FatalError names the first line that is none."""
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line, parse_constant=_refuse))
        except (ValueError, RecursionError) as error:
            why = (
                error.msg
                if isinstance(error, json.JSONDecodeError)
                else "a number or a text that JSON has no form for"
            )
            raise FatalError(f"line {number} is not JSON, and nothing was enqueued: {why}") from None
    return found


def task_ids(tasks: Sequence[JSON], field: str) -> list[str]:
    """What each task has there; FatalError names the first that has nothing."""
    found = []
    for number, task in enumerate(tasks, 1):
        value = task.get(field) if isinstance(task, dict) else None
        if not isinstance(value, str | int):
            raise FatalError(f"task {number} has no {field!r} that could name it, and nothing was enqueued")
        found.append(str(value))
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)
