"""Credit rules: how the rewards of an attempt become one reward a step. Named, versioned, pure.

| rule | a step's reward |
|---|---|
| `outcome@1` | the outcome, for every step |
| `per_step@1` | the sum of the rewards about that step; the last step also gets the outcome; else none |
| `nearest@1` | as `per_step@1`, and a numbered reward about nothing goes to the nearest call before it |
| `rewards@1` | as `nearest@1` without the outcome: where that sums up what the steps were given |
| `discounted(g)@1` | the sum over steps k ≥ t of g^(k-t) times `per_step@1`'s (Sutton & Barto, 3.8) |

No reward stays None: it is not 0. A rule never changes once it has trained something: a change gets a
new version, and every trajectory names the rule that made it.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.schemas.errors import BadRecordError


class GivenCredit(NamedTuple):
    """A reward other than the outcome, as it was given."""

    value: float
    about_sequence_id: int | None
    sequence_id: int | None


Steps = Sequence[int]
"""Sequence ids of the calls, ascending."""

CreditRule = Callable[[Steps, Sequence[GivenCredit], float | None], list[float | None]]
"""(steps, rewards other than the outcome, outcome) → a reward for each step."""


def outcome(steps: Steps, given: Sequence[GivenCredit], outcome: float | None) -> list[float | None]:  # noqa: ARG001
    return [outcome] * len(steps)


def per_step(steps: Steps, given: Sequence[GivenCredit], outcome: float | None) -> list[float | None]:
    return _sums(steps, [(reward.about_sequence_id, reward.value) for reward in given], outcome)


def nearest(steps: Steps, given: Sequence[GivenCredit], outcome: float | None) -> list[float | None]:
    about: list[tuple[int | None, float]] = []
    for reward in given:
        target = reward.about_sequence_id
        if target is None and reward.sequence_id is not None:
            target = max((step for step in steps if step < reward.sequence_id), default=None)
        about.append((target, reward.value))
    return _sums(steps, about, outcome)


def rewards(steps: Steps, given: Sequence[GivenCredit], outcome: float | None) -> list[float | None]:  # noqa: ARG001
    return nearest(steps, given, None)


def discounted(
    gamma: float, steps: Steps, given: Sequence[GivenCredit], outcome: float | None
) -> list[float | None]:
    returns: list[float | None] = []
    later: float | None = None
    for reward in reversed(per_step(steps, given, outcome)):
        if reward is not None or later is not None:
            later = (reward or 0.0) + gamma * (later or 0.0)
        returns.append(later)
    return returns[::-1]


def _sums(
    steps: Steps, about: Sequence[tuple[int | None, float]], outcome: float | None
) -> list[float | None]:
    by_step: dict[int, list[float]] = {step: [] for step in steps}
    for target, value in about:
        if target in by_step:
            by_step[target].append(value)
    if steps and outcome is not None:
        by_step[steps[-1]].append(outcome)
    # fsum rounds once, so that the order in which rewards came can't show in the last bit (G4).
    return [math.fsum(values) if values else None for values in by_step.values()]


_NAMED: dict[str, CreditRule] = {
    "outcome@1": outcome,
    "per_step@1": per_step,
    "nearest@1": nearest,
    "rewards@1": rewards,
}
_DISCOUNTED = re.compile(r"discounted\((0(?:\.\d+)?|1(?:\.0+)?)\)@1")


def credit_rule(name: str) -> CreditRule:
    """The rule of this name; BadRecordError lists what there is."""
    if name in _NAMED:
        return _NAMED[name]
    match = _DISCOUNTED.fullmatch(name)
    if match is None:
        known = ", ".join([*_NAMED, "discounted(g)@1 with 0 ≤ g ≤ 1"])
        raise BadRecordError(f"unknown credit rule {name!r}: there are {known}")
    gamma = float(match[1])
    return lambda steps, given, outcome: discounted(gamma, steps, given, outcome)
