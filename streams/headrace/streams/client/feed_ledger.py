"""FeedLedger: what was fed, what became of it, and how much more may be. Pure.

A group is in flight until it has a verdict, and ahead until it is excluded or done with: a version says
which batches it was trained on, or how far in trajectories its trainer has come; and a trainer says which it
passed over, of which no version will tell. A batch that was trained on stays ahead until a version has it.
"""

from collections import Counter, deque
from collections.abc import Callable

from headrace.schemas.records import GroupVerdict, ResourceVersion, TrainStep
from headrace.streams.client.feed_state import AheadBatch, LedgerState

EXPIRED = "verdict_expired"
"""The fate of a group whose verdict the log did not keep until somebody read it."""
_RECENT = 64


class FeedLedger:
    """Of the groups that train. `trajectories` is the topic by whose offsets trainers say where they are."""

    def __init__(self, trajectories: str, *, max_in_flight: int, max_ahead: int | None) -> None:
        self._prefix = f"{trajectories}:"
        self._max_in_flight = max_in_flight
        self._max_ahead = max_ahead
        self._in_flight: dict[str, int] = {}
        """Places in the plan, by group id."""
        self._batched: dict[str, AheadBatch] = {}
        """By batch id."""
        self._trained: set[str] = set()
        """Batch ids."""
        self._consumed: dict[int, int] = {}
        self._passed_over: dict[str, int] = {}
        """By batch id, how many groups were fed when the trainer said so: only those can be in it."""
        self.fates: Counter[str] = Counter()
        """Of groups with a verdict: batched, or the reason."""
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.num_fed = 0

    def restore(self, state: LedgerState, num_fed: int, group_id: Callable[[int], str]) -> None:
        """Go on from there; `group_id` is of a place in the plan."""
        self._in_flight = {group_id(index): index for index in state.in_flight}
        if self._max_ahead is not None:
            self._batched = {batch.batch_id: batch for batch in state.ahead}
        self._passed_over = dict(state.passed_over)
        self.fates = Counter(state.fates)
        self._recent.extend(state.recent)
        self.num_fed = num_fed

    def state(self) -> LedgerState:
        """What `restore` takes. What versions say is not in it: their topic keeps them all."""
        return LedgerState(
            in_flight=tuple(self._in_flight.values()),
            ahead=tuple(self._batched.values()),
            passed_over=dict(self._passed_over),
            fates=dict(self.fates),
            recent=tuple(self._recent),
        )

    def add(self, group_id: str) -> None:
        """The next of the plan is enqueued."""
        self._in_flight[group_id] = self.num_fed
        self.num_fed += 1

    def settle(self, verdict: GroupVerdict) -> None:
        """The first of a group counts; those of others do not concern it."""
        if self._in_flight.pop(verdict.group_id, None) is None:
            return
        self.fates[verdict.reason or verdict.status] += 1
        if verdict.outcome_mean is not None:
            self._recent.append(verdict.outcome_mean)
        if verdict.batch_id is not None and self._max_ahead is not None:
            self._join(verdict.batch_id, verdict.source_partition, verdict.ready_offset)
        self._forget_passed_over()

    def advance(self, version: ResourceVersion) -> None:
        """A version of the weights that these groups train."""
        if self._max_ahead is None:
            return
        self._trained.update(version.trained_on)
        for place, offset in version.consumed_offsets.items():
            partition = place.removeprefix(self._prefix)
            if partition != place and partition.isdecimal():
                self._consumed[int(partition)] = max(offset, self._consumed.get(int(partition), 0))
        self._batched = {
            batch_id: batch for batch_id, batch in self._batched.items() if not self._is_done(batch)
        }

    def pass_over(self, step: TrainStep) -> None:
        """Batches that a trainer took no step on are done with; of others, versions tell."""
        if self._max_ahead is None or step.num_steps != 0:
            return
        for batch_id in step.batch_ids:
            self._batched.pop(batch_id, None)
            self._passed_over[batch_id] = self.num_fed
        self._forget_passed_over()

    def expire(self) -> int:
        """No verdict comes any more for what is in flight; how many groups that are."""
        num = len(self._in_flight)
        self._in_flight.clear()
        if num:
            self.fates[EXPIRED] += num
        self._forget_passed_over()
        return num

    def is_in_flight(self, group_id: str) -> bool:
        return group_id in self._in_flight

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
        """Neither excluded nor done with."""
        return len(self._in_flight) + sum(batch.num_groups for batch in self._batched.values())

    @property
    def recent_outcome(self) -> float | None:
        """The mean over the last groups with a verdict."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def _join(self, batch_id: str, partition: int, offset: int) -> None:
        before = self._batched.get(batch_id)
        batch = AheadBatch(
            batch_id=batch_id,
            partition=partition,
            offset=max(offset, before.offset) if before else offset,
            num_groups=before.num_groups + 1 if before else 1,
        )
        if not self._is_done(batch):
            self._batched[batch_id] = batch

    def _is_done(self, batch: AheadBatch) -> bool:
        return (
            batch.batch_id in self._trained
            or batch.batch_id in self._passed_over
            or batch.offset < self._consumed.get(batch.partition, 0)
        )

    def _forget_passed_over(self) -> None:
        """Batches that none of the groups in flight can be in."""
        if self._passed_over:
            oldest = min(self._in_flight.values(), default=self.num_fed)
            self._passed_over = {each: fed for each, fed in self._passed_over.items() if fed > oldest}
