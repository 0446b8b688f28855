"""Group: the finished rollouts of one task, and whether they may train. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from headrace.schemas.records import Trajectory
from headrace.schemas.records.rollout import Mode
from headrace.streams.processors.batcher.settings import BatcherSettings

DEADLINE = "group_deadline"
TOO_FEW = "too_few_accepted"
NO_TRAINABLE_CALLS = "no_trainable_calls"
STALE = "stale"
NO_CONTRAST = "no_contrast"
TOO_LARGE = "too_large"

OUTCOME = "outcome@1"
"""The credit rule by which each call has the outcome: there, how many calls there were is no contrast."""


def mode_reason(mode: Mode) -> str:
    """Why a group that is for validation or test does not train."""
    return f"mode_{mode}"


class Member(NamedTuple):
    """What counts of a rollout's last trajectory. `offset` is its place in the log."""

    rollout_id: str
    offset: int
    accepted: bool
    outcome: float | None = None
    credited: tuple[float, ...] = ()
    """The rewards of its calls, in order of size."""
    num_tokens: int = 0
    num_trainable: int = 0
    oldest: Mapping[str, int] = {}
    """Versions that its trainable calls came from, by resource."""
    newest: Mapping[str, int] = {}

    @classmethod
    def of(cls, trajectory: Trajectory, offset: int) -> Self:
        if not trajectory.accepted:
            return cls(trajectory.rollout_id, offset, accepted=False)
        rewards = [t.reward for t in trajectory.transitions if t.reward is not None]
        versions = seen_versions(trajectory)
        return cls(
            trajectory.rollout_id,
            offset,
            accepted=True,
            outcome=trajectory.outcome,
            credited=tuple(sorted(set(rewards) if trajectory.credit_rule == OUTCOME else rewards)),
            num_tokens=num_tokens(trajectory),
            num_trainable=sum(t.trainable for t in trajectory.transitions),
            oldest={name: min(found) for name, found in versions.items()},
            newest={name: max(found) for name, found in versions.items()},
        )


@dataclass(slots=True)
class Group:
    """Grows by `add`. Times are the log's, in ms."""

    group_id: str
    task_id: str
    mode: Mode
    size: int
    first_offset: int
    first_ms: int
    members: dict[str, Member] = field(default_factory=dict)
    """By rollout id, the first last trajectory of each (C2, G7)."""
    ready_offset: int = -1
    """Of the record that made it ready."""
    ready_ms: int = 0
    staleness: int | None = None

    def add(self, member: Member) -> bool:
        """Whether it is the first of its rollout."""
        return self.members.setdefault(member.rollout_id, member) is member

    @property
    def is_whole(self) -> bool:
        return len(self.members) >= self.size

    @property
    def accepted(self) -> list[Member]:
        """By rollout id."""
        return [member for _, member in sorted(self.members.items()) if member.accepted]

    @property
    def has_contrast(self) -> bool:
        """Whether outcomes, or the rewards credited to calls, differ from rollout to rollout."""
        return len({(member.outcome, member.credited) for member in self.accepted}) > 1

    @property
    def outcomes(self) -> list[float]:
        """Of accepted rollouts that have one."""
        return [member.outcome for member in self.accepted if member.outcome is not None]

    @property
    def num_tokens(self) -> int:
        return sum(member.num_tokens for member in self.accepted)

    def staleness_at(self, newest: Mapping[str, int]) -> int | None:
        """How far its oldest call is behind these versions (C15); None where no call names one."""
        behind = [
            newest.get(name, version) - version
            for member in self.accepted
            for name, version in member.oldest.items()
        ]
        return max(behind, default=None)

    def why_excluded(self, settings: BatcherSettings) -> str | None:
        """The first reason that applies; None if it may train."""
        accepted = self.accepted
        applies = (
            (self.mode != "train", mode_reason(self.mode)),
            (not self.is_whole and settings.on_deadline == "drop", DEADLINE),
            (len(accepted) < settings.min_rollouts, TOO_FEW),
            (not any(member.num_trainable for member in accepted), NO_TRAINABLE_CALLS),
            (settings.max_staleness is not None and (self.staleness or 0) > settings.max_staleness, STALE),
            (settings.require_contrast and not self.has_contrast, NO_CONTRAST),
            (self.num_tokens > settings.batch_tokens, TOO_LARGE),
        )
        return next((reason for is_so, reason in applies if is_so), None)

    def policy_versions(self) -> tuple[int, int] | None:
        """The oldest and the newest version of any resource that its trainable calls came from."""
        oldest = [version for member in self.accepted for version in member.oldest.values()]
        newest = [version for member in self.accepted for version in member.newest.values()]
        return (min(oldest), max(newest)) if oldest else None

    def outcome_statistics(self) -> tuple[float, float] | None:
        """Mean and population's standard deviation; None where there are none, or no finite ones."""
        outcomes = self.outcomes
        if not outcomes:
            return None
        try:
            mean = math.fsum(outcomes) / len(outcomes)
            std = math.sqrt(math.fsum((outcome - mean) ** 2 for outcome in outcomes) / len(outcomes))
        except OverflowError:
            return None
        return (mean, std) if math.isfinite(mean) and math.isfinite(std) else None


def num_tokens(trajectory: Trajectory) -> int:
    """Of prompts and responses, each id that a call shares with the one before counted once."""
    return sum(len(t.prompt_suffix_token_ids) + len(t.response_token_ids) for t in trajectory.transitions)


def seen_versions(trajectory: Trajectory) -> dict[str, set[int]]:
    """Versions of trainable calls, by resource."""
    found: dict[str, set[int]] = {}
    for transition in trajectory.transitions:
        if transition.trainable and transition.resource_name and transition.resource_version is not None:
            found.setdefault(transition.resource_name, set()).add(transition.resource_version)
    return found
