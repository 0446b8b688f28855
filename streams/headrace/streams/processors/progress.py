"""Progress: which events of one attempt have been seen, which of them count, and whether that is all.

What counts depends on the places of records in their own partition, never on the order in which topics
were read or on a clock (G4):

- of two records with one sequence id, the first in the log counts; so does the first end, and a start
  that stands before it;
- a `closed` mark in spans or rewards shuts out what follows it there (the deadline passed);
- rewards from outside the attempt count up to the first outcome reward: that one closes the books.
"""

from dataclasses import dataclass, field

from headrace.schemas.records import OUTCOME, AttemptEvent, AttemptOrigin, Reward, Span

_FAR = 2**63


@dataclass(slots=True)
class Numbered:
    """Records of one topic by sequence id, and the first closing mark. Values are offsets."""

    first: dict[int, int] = field(default_factory=dict)
    closed_at: int = _FAR

    def add(self, sequence_id: int, offset: int) -> None:
        if offset < self.first.get(sequence_id, _FAR):
            self.first[sequence_id] = offset

    def counted(self, last_sequence_id: int) -> dict[int, int]:
        return {
            sequence_id: offset
            for sequence_id, offset in self.first.items()
            if offset < self.closed_at and sequence_id <= last_sequence_id
        }


@dataclass(slots=True)
class Progress:
    """Grows by `add_*`, in any order and with repeats; the rest are questions about what was added."""

    rollout_id: str
    attempt_id: str
    known: dict[str, set[int]] = field(default_factory=dict)
    """Offsets by topic."""
    started: tuple[int, AttemptEvent] | None = None
    ended: tuple[int, AttemptEvent] | None = None
    spans: Numbered = field(default_factory=Numbered)
    rewards: Numbered = field(default_factory=Numbered)
    outcomes: dict[int, int] = field(default_factory=dict)
    """Offsets of numbered outcome rewards, and their sequence ids."""
    external: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """Rewards from outside: reward id → (offset, is outcome)."""

    def is_new(self, topic: str, offset: int) -> bool:
        """Whether the record at this place was not asked about before; it counts as known from now on."""
        known = self.known.setdefault(topic, set())
        if offset in known:
            return False
        known.add(offset)
        return True

    def add_event(self, offset: int, event: AttemptEvent) -> None:
        if event.kind == "started" and (self.started is None or offset < self.started[0]):
            self.started = offset, event
        if event.kind == "ended" and (self.ended is None or offset < self.ended[0]):
            self.ended = offset, event

    def add_span(self, offset: int, span: Span) -> None:
        if span.sequence_id is None:
            self.spans.closed_at = min(self.spans.closed_at, offset)
        else:
            self.spans.add(span.sequence_id, offset)

    def add_reward(self, offset: int, reward: Reward) -> None:
        is_outcome = reward.name == OUTCOME
        if reward.kind == "closed":
            self.rewards.closed_at = min(self.rewards.closed_at, offset)
        elif reward.sequence_id is not None:
            self.rewards.add(reward.sequence_id, offset)
            if is_outcome:
                self.outcomes[offset] = reward.sequence_id
        elif offset < self.external.get(reward.reward_id, (_FAR, False))[0]:
            self.external[reward.reward_id] = offset, is_outcome

    @property
    def is_closed(self) -> bool:
        """Both marks are there: nothing more can count."""
        return self.spans.closed_at < _FAR and self.rewards.closed_at < _FAR

    @property
    def origin(self) -> AttemptOrigin | None:
        """What the start said of the rollout, or else the end; None where neither did."""
        if self.started is not None and self.has_started:
            return self.started[1].origin
        return self.ended[1].origin if self.ended else None

    @property
    def has_started(self) -> bool:
        """A start stands before the end, if there is one."""
        return self.started is not None and (self.ended is None or self.started[0] < self.ended[0])

    @property
    def last_sequence_id(self) -> int | None:
        return self.ended[1].last_sequence_id if self.ended else None

    @property
    def expects_outcome(self) -> bool:
        """Whether an outcome from outside is waited for; where it isn't, outside rewards never count."""
        origin = self.origin
        if origin is None or self.ended is None or not self.has_started:
            return False
        return origin.reward_grace_s > 0 and self.ended[1].status in origin.accept

    def counted_spans(self) -> dict[int, int]:
        """Sequence id → offset in spans."""
        return self.spans.counted(self._limit())

    def counted_rewards(self) -> dict[int, int]:
        """Sequence id → offset in rewards, of rewards from within the attempt."""
        return self.rewards.counted(self._limit())

    def counted_external(self) -> list[int]:
        """Offsets in rewards of those from outside that count, ascending."""
        if not self.expects_outcome:
            return []
        closing = self._first_outcome()
        return sorted(
            offset
            for offset, _ in self.external.values()
            if offset < self.rewards.closed_at and (closing is None or offset <= closing)
        )

    def outcome_offset(self) -> int | None:
        """Where the outcome stands in rewards: the last one from within, else the first from outside."""
        numbered = self._counted_outcomes()
        if numbered:
            return max(numbered, key=lambda offset: numbered[offset])
        return self._first_outcome() if self.expects_outcome else None

    def num_events(self) -> int:
        return len(self.counted_spans().keys() | self.counted_rewards().keys())

    def missing(self, limit: int = 1000) -> list[int]:
        """Sequence ids from 1 to the last that nothing accounts for, the first of them."""
        if self.last_sequence_id is None:
            return []
        seen = self.counted_spans().keys() | self.counted_rewards().keys()
        found: list[int] = []
        for sequence_id in range(1, self.last_sequence_id + 1):
            if len(found) == limit:
                break
            if sequence_id not in seen:
                found.append(sequence_id)
        return found

    def is_complete(self) -> bool:
        """It has started and ended, and every id up to the last is accounted for (G3)."""
        if not self.has_started or self.last_sequence_id is None:
            return False
        # Cheap first: this is asked for each open attempt in each batch.
        if len(self.spans.first) + len(self.rewards.first) < self.last_sequence_id:
            return False
        return self.num_events() == self.last_sequence_id

    def is_ready(self) -> bool:
        """The verdict can be given, and no later record of the log can change it."""
        if self.ended is None:
            return False
        if self.is_complete() and (not self.expects_outcome or self.outcome_offset() is not None):
            return True
        return self.is_closed

    def _limit(self) -> int:
        return _FAR if self.last_sequence_id is None else self.last_sequence_id

    def _counted_outcomes(self) -> dict[int, int]:
        counted = set(self.counted_rewards().values())
        return {offset: sequence_id for offset, sequence_id in self.outcomes.items() if offset in counted}

    def _first_outcome(self) -> int | None:
        offsets = list(self._counted_outcomes())
        offsets += [
            offset
            for offset, is_outcome in self.external.values()
            if is_outcome and offset < self.rewards.closed_at
        ]
        return min(offsets, default=None)
