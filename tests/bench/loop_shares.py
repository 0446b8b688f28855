"""Where a training loop's wall time goes: four shares, which sum to 100 per cent.

- training: the trainer prepares a batch, computes logprobs of it, and trains on it;
- sync: the trainer writes a version and its checkpoint. The engine loads the version later, while the trainer
  waits, and that time is not here;
- generation: the trainer waits for a batch, and at least one rollout runs: its attempt has started, and has
  not ended. Calls that wait for an engine that loads weights are such time too;
- idle: all else. The trainer waits and no rollout runs, or it says what it has done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.schemas.records import AttemptEvent, TrainStep

_TRAINING = ("preparation", "logprobs", "training")
_SYNC, _WAITING = "sync", "idle"

Interval = tuple[float, float]
"""From and to, in seconds since 1970."""


@dataclass(frozen=True)
class Shares:
    """In per cent of the time between the ends of two steps."""

    generation: float
    training: float
    sync: float
    idle: float


def shares(steps: Sequence[TrainStep], events: Iterable[AttemptEvent]) -> Shares:
    """From the first step's end to the last one's: at least two, in their order, of one run."""
    running = _running(events)
    training = sync = generation = 0.0
    for before, step in pairwise(steps):
        begin, end = before.time.timestamp(), step.time.timestamp()
        spent = step.durations_s
        step_training = sum(spent.get(each, 0.0) for each in _TRAINING)
        training += step_training
        sync += spent.get(_SYNC, 0.0)
        has_batch = end - step_training - spent.get(_SYNC, 0.0)
        waits_from = max(begin, has_batch - spent.get(_WAITING, 0.0))
        generation += _overlap(running, (waits_from, has_batch))
    wall = steps[-1].time.timestamp() - steps[0].time.timestamp()
    idle = wall - generation - training - sync
    return Shares(*(100 * each / wall for each in (generation, training, sync, idle)))


def _running(events: Iterable[AttemptEvent]) -> list[Interval]:
    """When at least one attempt ran; apart from each other, in order. What has not ended runs on."""
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for event in events:
        times = {"started": starts, "ended": ends}.get(event.kind)
        if times is not None:
            times.setdefault(event.attempt_id, event.time.timestamp())
    found: list[Interval] = []
    for start, end in sorted((start, ends.get(attempt, float("inf"))) for attempt, start in starts.items()):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _overlap(intervals: Iterable[Interval], window: Interval) -> float:
    return sum(max(0.0, min(end, window[1]) - max(start, window[0])) for start, end in intervals)
