"""FeedState: what a run must remember to go on. The rest is in the log, and follows from the plan."""

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError


class FeedStateError(FatalError):
    """A state file that is of another run, or none at all."""


class FeedState(BaseModel):
    """Written before each enqueueing: what a death may have cut short is enqueued again, ids and all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    began_ms: int
    tasks: str
    """A hash of the tasks, their order, and how they are grouped."""
    next_index: int = 0
    again_from: int = 0
    """Groups from here on may not have been enqueued when the process died."""
    val_versions: tuple[int, ...] = ()
    groups_from: dict[int, int] = {}
    """Where `groups` ended when the run began, by partition."""

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """None where there is no file."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise FeedStateError(f"{path} is not the state of a feeder: {describe(error)}") from None

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        with fresh.open("wb") as file:
            file.write(self.model_dump_json(indent=2).encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def check(self, *, run: str, tasks: str, path: Path) -> None:
        """FeedStateError where going on would mix two runs."""
        if (self.run, self.tasks) != (run, tasks):
            what = "run" if self.run != run else "set of tasks, group size, seed or order"
            raise FeedStateError(f"{path} is of another {what}: name another file to begin anew")
