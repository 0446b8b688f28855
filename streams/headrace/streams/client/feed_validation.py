"""Rounds of validation: tasks that never train, run with a version every few, and what came of them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.schemas.records import GroupVerdict


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
    num_samples: int
    left: set[str]
    verdicts: list[GroupVerdict] = field(default_factory=list)


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

    def begin(self, version: int, group_ids: Iterable[str], num_samples: int) -> None:
        if version not in self.versions:
            self.versions.append(version)
        self._rounds[version] = _Round(version, num_samples, set(group_ids))

    def settle(self, verdict: GroupVerdict) -> ValidationReport | None:
        """The report, once a round's last group has its verdict."""
        for each in self._rounds.values():
            if verdict.group_id in each.left:
                each.left.discard(verdict.group_id)
                each.verdicts.append(verdict)
                if not each.left:
                    del self._rounds[each.version]
                    return _report(each)
                return None
        return None

    @property
    def open_versions(self) -> list[int]:
        """Of rounds that are under way."""
        return list(self._rounds)

    @property
    def num_left(self) -> int:
        """Groups without a verdict."""
        return sum(len(each.left) for each in self._rounds.values())


def _report(over: _Round) -> ValidationReport:
    num_rollouts = len(over.verdicts) * over.num_samples
    scored = [verdict for verdict in over.verdicts if verdict.outcome_mean is not None]
    num_scored = sum(verdict.num_accepted for verdict in scored)
    total = sum((verdict.outcome_mean or 0.0) * verdict.num_accepted for verdict in scored)
    versions = {
        version
        for verdict in over.verdicts
        for version in (verdict.policy_version_min, verdict.policy_version_max)
        if version is not None
    }
    return ValidationReport(
        over.version,
        len(over.verdicts),
        num_rollouts,
        num_rollouts - num_scored,
        total / num_scored if num_scored else None,
        bool(versions - {over.version}),
    )
