"""FeedState: what a run must remember to go on. The rest is in the log, and follows from the plan.

What was read of the log is in it, and up to where: the log need not keep what the run has taken in.
"""

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError


class FeedStateError(FatalError):
    """A state file that is of another run, or none at all."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AheadBatch(_Part):
    """A batch with groups of the run, that is neither in a version nor passed over."""

    batch_id: str
    partition: int
    """Of trajectories, as verdicts name it."""
    offset: int
    """In there, of the last record that made one of these groups ready."""
    num_groups: int
    """Of the run."""


class LedgerState(_Part):
    """What a feed_ledger.FeedLedger knows."""

    in_flight: tuple[int, ...] = ()
    """Places in the plan of groups that were fed and have no verdict."""
    ahead: tuple[AheadBatch, ...] = ()
    passed_over: dict[str, int] = {}
    """Batches without a step that groups in flight may be in: how many groups were fed by then."""
    fates: dict[str, int] = {}
    recent: tuple[float, ...] = ()


class RoundState(_Part):
    """What a feed_validation.Validation knows of a round that is not over."""

    left: tuple[int, ...]
    """Places in the round of groups without a verdict."""
    num_scored: int = 0
    total: float = 0.0
    is_mixed: bool = False


class FeedState(_Part):
    """Written before each enqueueing: what a death may have cut short is enqueued again, ids and all."""

    run: str
    began_ms: int
    tasks: str
    """A hash of the tasks, their order, and how they are grouped."""
    next_index: int = 0
    again_from: int = 0
    """Groups from here on may not have been enqueued when the process died."""
    val_versions: tuple[int, ...] = ()
    groups_from: dict[int, int] = {}
    """Up to where `groups` is taken in, by partition."""
    steps_from: dict[int, int] = {}
    """Up to where `train-steps` is."""
    ledger: LedgerState | None = None
    """None in files of earlier versions: all that was fed is in flight at `groups_from`."""
    rounds: dict[int, RoundState] | None = None
    """Rounds of `val_versions` that are not over; None in files of earlier versions: none is, as above."""

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
            file.write(self.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def check(self, *, run: str, tasks: str, path: Path) -> None:
        """FeedStateError where going on would mix two runs."""
        if (self.run, self.tasks) != (run, tasks):
            what = "run" if self.run != run else "set of tasks, group size, seed or order"
            raise FeedStateError(f"{path} is of another {what}: name another file to begin anew")
