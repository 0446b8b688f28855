"""Checkpoints: the model, its optimizer and random numbers, and with them what was consumed (G5).

The offsets are in the checkpoint and nowhere else: after a resume each batch is trained on exactly once, as
the weights know it. A checkpoint is whole or not there; several processes write one together.
"""

from pathlib import Path
from typing import Protocol

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import FatalError
from headrace.trainer.folders import finish, keep_last, numbered, remove_unfinished, replace_file

PREFIX = "batch-"
_STATE = "state.json"
_POLICY = "policy"
_DRAFT = ".unfinished-checkpoint"

log = structlog.get_logger(__name__)


class TrainState(BaseModel):
    """What a run has come to beside its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    step: int = 0
    """Optimizer steps, each on one batch or a part of it."""
    num_batches: int = 0
    offsets: dict[str, int] = {}
    """Of the last batch: where to go on reading, and by which a batch that comes again is known."""
    policy_version: int | None = None
    """Of the weights as they were last published."""
    first_version: int | None = None
    """Of the weights that the run began with: calls of versions before it came from other weights."""
    num_versions: int = 0
    """Published by the run, the first one among them."""
    unpublished: tuple[str, ...] = ()
    """Batches trained on since then."""
    num_samples: int = 0
    num_tokens: int = 0
    outcomes: tuple[float, ...] = ()
    """Of the last rollouts that were settled, trained on or not, as many as [stop] looks at."""


class Checkpointed(Protocol):
    """policy.Policy; collective."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


class Together(Protocol):
    """ranks.Ranks; collective."""

    @property
    def is_main(self) -> bool: ...

    def barrier(self) -> None: ...


class Checkpoints:
    """Of one run, in one folder that every process sees."""

    def __init__(self, folder: Path, ranks: Together, *, keep: int) -> None:
        self._folder = folder
        self._ranks = ranks
        self._keep = keep

    def newest(self) -> tuple[TrainState, Path] | None:
        """FatalError if it can't be read: going on without it would train batches twice."""
        folders = numbered(self._folder, PREFIX)
        if not folders:
            return None
        path = folders[max(folders)]
        try:
            return TrainState.model_validate_json((path / _STATE).read_bytes()), path
        except (OSError, ValidationError) as error:
            why = describe(error) if isinstance(error, ValidationError) else str(error)
            raise FatalError(f"the checkpoint {path} can't be read: {why}") from None

    def load(self, policy: Checkpointed, run_id: str) -> TrainState | None:
        """Bring the policy to the newest checkpoint; None if there is none. Collective."""
        if self._ranks.is_main and self._folder.exists():
            remove_unfinished(self._folder)
        self._ranks.barrier()
        found = self.newest()
        if found is None:
            return None
        state, path = found
        if state.run_id != run_id:
            raise FatalError(
                f"{path} is of run {state.run_id!r}, and this is {run_id!r}: give it another folder, "
                "or the same name to go on"
            )
        policy.load(path / _POLICY)
        log.info("checkpoint loaded", path=str(path), step=state.step, num_batches=state.num_batches)
        return state

    def save(self, policy: Checkpointed, state: TrainState) -> None:
        """Collective."""
        target = self._folder / f"{PREFIX}{state.num_batches:08d}"
        draft = self._folder / f"{_DRAFT}-{state.num_batches:08d}"
        if self._ranks.is_main:
            (draft / _POLICY).mkdir(parents=True)
        self._ranks.barrier()
        policy.save(draft / _POLICY)
        self._ranks.barrier()
        if self._ranks.is_main:
            (draft / _STATE).write_text(state.model_dump_json(indent=1))
            finish(draft, target)
            keep_last(self._folder, PREFIX, self._keep)
        self._ranks.barrier()

    def amend(self, state: TrainState) -> None:
        """The newest checkpoint's weights have another state: they were published since."""
        found = self.newest()
        if self._ranks.is_main and found is not None:
            replace_file(found[1] / _STATE, state.model_dump_json(indent=1))
