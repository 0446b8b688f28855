"""Rounds of validation: tasks that never train, run with a version every few, and what came of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.records import GroupVerdict
from headrace.streams.client.feed_state import RoundState


class ValidationReport(NamedTuple):
    """A round that is over."""

    version: int
    """0: before there was one."""
    num_tasks: int
    num_rollouts: int
    num_failed: int
    """Rollouts that ended badly, without an outcome, or not in time."""
    outcome_mean: float | None
    """Over the rollouts that did not fail."""
    is_mixed: bool
    """Some calls came from other versions: the round was not pinned, or this one was not served."""


@dataclass(slots=True)
class _Round:
    version: int
    num_groups: int
    num_samples: int
    left: dict[str, int]
    """Places in the round, by group id."""
    num_scored: int = 0
    total: float = 0.0
    is_mixed: bool = False

    def add(self, verdict: GroupVerdict) -> None:
        del self.left[verdict.group_id]
        if verdict.outcome_mean is not None:
            self.num_scored += verdict.num_accepted
            self.total += verdict.outcome_mean * verdict.num_accepted
        versions = {verdict.policy_version_min, verdict.policy_version_max}
        self.is_mixed |= bool(versions - {None, self.version})

    def state(self) -> RoundState:
        return RoundState(
            left=tuple(self.left.values()),
            num_scored=self.num_scored,
            total=self.total,
            is_mixed=self.is_mixed,
        )


class Validation:
    """Rounds that are under way, and when the next is due."""

    def __init__(self, *, every: int, at_start: bool) -> None:
        self._every = every
        self._at_start = at_start
        self._rounds: dict[int, _Round] = {}
        self.versions: list[int] = []
        """Of all rounds, those that are over included."""

    def due(self, version: int) -> bool:
        """Whether a round is due with this one, the newest."""
        if not self._every and not self._at_start:
            return False
        if not self.versions:
            return self._at_start or version >= self._every
        return bool(self._every) and version - self.versions[-1] >= self._every

    def begin(
        self, version: int, group_ids: Sequence[str], num_samples: int, state: RoundState | None = None
    ) -> None:
        """With `state` it goes on from there."""
        if version not in self.versions:
            self.versions.append(version)
        places = state.left if state else range(len(group_ids))
        begun = _Round(version, len(group_ids), num_samples, {group_ids[place]: place for place in places})
        if state is not None:
            begun.num_scored, begun.total, begun.is_mixed = state.num_scored, state.total, state.is_mixed
        self._rounds[version] = begun

    def settle(self, verdict: GroupVerdict) -> ValidationReport | None:
        """The report, once a round's last group has its verdict."""
        for each in self._rounds.values():
            if verdict.group_id in each.left:
                each.add(verdict)
                if not each.left:
                    del self._rounds[each.version]
                    return _report(each)
                return None
        return None

    def expire(self) -> list[int]:
        """No verdict comes any more for rounds under way: they have no report. Their versions."""
        expired = list(self._rounds)
        self._rounds.clear()
        return expired

    def rounds(self) -> dict[int, RoundState]:
        """What `begin` takes of rounds that are under way, by version."""
        return {version: each.state() for version, each in self._rounds.items()}

    @property
    def open_versions(self) -> list[int]:
        """Of rounds that are under way."""
        return list(self._rounds)

    def is_left(self, group_id: str) -> bool:
        """Whether it is of a round under way, and has no verdict."""
        return any(group_id in each.left for each in self._rounds.values())

    @property
    def num_left(self) -> int:
        """Groups without a verdict."""
        return sum(len(each.left) for each in self._rounds.values())


def _report(over: _Round) -> ValidationReport:
    num_rollouts = over.num_groups * over.num_samples
    return ValidationReport(
        over.version,
        over.num_groups,
        num_rollouts,
        num_rollouts - over.num_scored,
        over.total / over.num_scored if over.num_scored else None,
        over.is_mixed,
    )
