"""FeedLedger: what was fed, what became of it, and how much more may be. Pure.

A group is in flight until it has a verdict, and ahead until it is excluded or trained: a version says which
batches it was trained on, or how far in trajectories its trainer has come.
"""

from collections import Counter, deque
from dataclasses import dataclass

from headrace.schemas.records import GroupVerdict, ResourceVersion

_RECENT = 64


@dataclass(slots=True)
class _Batched:
    batch_id: str
    partition: int
    offset: int


class FeedLedger:
    """Of the groups that train. `trajectories` is the topic by whose offsets trainers say where they are."""

    def __init__(self, trajectories: str, *, max_in_flight: int, max_ahead: int | None) -> None:
        self._prefix = f"{trajectories}:"
        self._max_in_flight = max_in_flight
        self._max_ahead = max_ahead
        self._in_flight: set[str] = set()
        self._batched: dict[str, _Batched] = {}
        self._trained: set[str] = set()
        """Batch ids."""
        self._consumed: dict[int, int] = {}
        self.fates: Counter[str] = Counter()
        """Of groups with a verdict: batched, or the reason."""
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.num_fed = 0

    def add(self, group_id: str) -> None:
        """It is enqueued."""
        self._in_flight.add(group_id)
        self.num_fed += 1

    def settle(self, verdict: GroupVerdict) -> None:
        """The first of a group counts; those of others do not concern it."""
        if verdict.group_id not in self._in_flight:
            return
        self._in_flight.discard(verdict.group_id)
        self.fates[verdict.reason or verdict.status] += 1
        if verdict.outcome_mean is not None:
            self._recent.append(verdict.outcome_mean)
        if verdict.batch_id is None or self._max_ahead is None:
            return
        batched = _Batched(verdict.batch_id, verdict.source_partition, verdict.ready_offset)
        if not self._is_trained(batched):
            self._batched[verdict.group_id] = batched

    def advance(self, version: ResourceVersion) -> None:
        """A version of the weights that these groups train."""
        if self._max_ahead is None:
            return
        self._trained.update(version.trained_on)
        for place, offset in version.consumed_offsets.items():
            partition = place.removeprefix(self._prefix)
            if partition != place and partition.isdecimal():
                self._consumed[int(partition)] = max(offset, self._consumed.get(int(partition), 0))
        trained = [group_id for group_id, batched in self._batched.items() if self._is_trained(batched)]
        for group_id in trained:
            del self._batched[group_id]

    def room(self) -> int:
        """How many more groups may be enqueued now."""
        room = self._max_in_flight - self.num_in_flight
        if self._max_ahead is not None:
            room = min(room, self._max_ahead - self.num_ahead)
        return max(room, 0)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_ahead(self) -> int:
        """Neither excluded nor trained."""
        return len(self._in_flight) + len(self._batched)

    @property
    def recent_outcome(self) -> float | None:
        """The mean over the last groups with a verdict."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def _is_trained(self, batched: _Batched) -> bool:
        return batched.batch_id in self._trained or batched.offset < self._consumed.get(batched.partition, 0)
