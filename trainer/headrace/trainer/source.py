"""BatchSource: finalized batches for every process of a run, read by the main one.

What has been trained on is in the checkpoint: reading begins there, and a batch that comes again is left out.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.schemas.records import Trajectory
from headrace.trainer.checkpoint import TrainState

_NOTHING_YET = "nothing yet"
"""Sent now and then while nothing comes: process groups give up on a peer that is silent for long."""


class TrainingBatch(NamedTuple):
    batch_id: str
    groups: Sequence[Sequence[Trajectory]]
    offsets: Mapping[str, int]
    """Where reading goes on after it."""
    waited_s: float
    num_settled: int = 0
    """Rollouts with an outcome that were settled since the batch before it, whether it has them or not."""
    settled_outcome: float = 0.0
    """Their mean."""


class Reader(Protocol):
    """Where batches come from."""

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Go on right after the batch that had them; with none, from where it is told to begin."""

    @property
    def offsets(self) -> Mapping[str, int]:
        """Where it is."""

    def waiting_for(self) -> str:
        """What must come before there is a batch, for people."""

    def poll(self, timeout_s: float) -> TrainingBatch | None: ...


class Broadcast(Protocol):
    """ranks.Ranks; collective."""

    @property
    def is_main(self) -> bool: ...

    def broadcast(self, value: object) -> object: ...


class BatchSource:
    """Iterated once; ends when told to stop, on every rank after the same batch."""

    def __init__(
        self,
        ranks: Broadcast,
        reader: Reader | None,
        stop: threading.Event,
        *,
        poll_s: float = 0.2,
        tell_every_s: float = 10.0,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`reader` is the main rank's; `waiting` hears what is waited for, and for how long by now."""
        self._ranks = ranks
        self._reader = reader
        self._stop = stop
        self._poll_s = poll_s
        self._tell_every_s = tell_every_s
        self._waiting = waiting
        self._waits_since = 0.0

    def start(self, state: TrainState) -> Mapping[str, int]:
        """Begin where the state is; the offsets of that place, on every rank. Collective."""
        self._waits_since = time.monotonic()
        offsets: object = None
        if self._reader is not None:
            self._reader.seek(state.offsets)
            offsets = dict(self._reader.offsets)
        begun = self._ranks.broadcast(offsets)
        assert isinstance(begun, dict)  # noqa: S101  what the main rank sent
        return begun

    def __iter__(self) -> Iterator[TrainingBatch]:
        while True:
            found = self._ranks.broadcast(self._next() if self._ranks.is_main else None)
            if found is None:
                return
            if found == _NOTHING_YET:
                continue
            assert isinstance(found, TrainingBatch)  # noqa: S101  what the main rank sent
            yield found
            self._waits_since = time.monotonic()

    def _next(self) -> TrainingBatch | str | None:
        assert self._reader is not None  # noqa: S101  the main rank has one
        round_began = time.monotonic()
        while not self._stop.is_set():
            batch = self._reader.poll(self._poll_s)
            now = time.monotonic()
            if batch is not None:
                return batch._replace(waited_s=now - self._waits_since)
            if now - round_began >= self._tell_every_s:
                waits_for = self._reader.waiting_for()
                self._waiting(f"a batch, for {now - self._waits_since:.0f} s: {waits_for}")
                return _NOTHING_YET
        return None
