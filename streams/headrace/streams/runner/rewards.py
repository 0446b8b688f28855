"""Rewards as agents give them: a number, or numbers by name. No reward is not 0 (C1), NaN is none (C17)."""

import json
import math
from collections.abc import Mapping
from typing import Any

from headrace.schemas.records import OUTCOME
from headrace.streams.runner.errors import InvalidRewardError

Rewards = dict[str, float]

_NOT_JSON = frozenset({"nan", "inf", "infinity"})
"""What languages print for such numbers, less a sign."""


def finite(value: Any, name: str = OUTCOME) -> float:  # noqa: ANN401  what an agent gives
    """The number; InvalidRewardError for one that is not finite, and for what is no number.

    A numpy or torch scalar is a number; a text that looks like one is not.
    """
    if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
        raise InvalidRewardError(f"reward {name!r} is of type {type(value).__name__}: a number is expected")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidRewardError(f"reward {name!r} can't be read as a number: {error}") from error
    if not math.isfinite(number):
        raise InvalidRewardError(f"reward {name!r} is {number}: a finite number is expected")
    return number


def read_returned(value: Any) -> Rewards:  # noqa: ANN401  what an agent returns
    """From an agent's return value: None, a number, or a mapping of names to numbers.

    In a mapping `reward` stands for the outcome, and `rewards` may hold a mapping of its own, as in what a
    command prints. None as a number means that there is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        if isinstance(value, str | bytes | bytearray) or not hasattr(value, "__float__"):
            raise InvalidRewardError(
                f"the agent returned {type(value).__name__}: a number, None, or numbers by name are expected"
            )
        return {OUTCOME: finite(value)}
    found: Rewards = {}
    for name, given in value.items():
        if name == "rewards" and isinstance(given, Mapping):
            found |= _named(given)
        else:
            found |= _named({OUTCOME if name == "reward" else name: given})
    return found


def read_last_line(output: str) -> Rewards:
    """From what a command printed: its last line that is not empty, if that speaks of a reward.

    A JSON number, `{"reward": 0.5}` or `{"rewards": {"outcome": 0.5, "style": 1}}`. Any other line is talk,
    except one that names a number which is not finite.
    """
    line = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
    if line.lstrip("+-").lower() in _NOT_JSON:
        raise InvalidRewardError(f"the last line is {line}: a finite number is expected")
    try:
        # With NaN and its like, so that they are refused where they are a reward, and only there.
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {OUTCOME: finite(value)}
    if not isinstance(value, dict):
        return {}
    found = _named({OUTCOME: value["reward"]}) if "reward" in value else {}
    if "rewards" in value:
        if not isinstance(value["rewards"], dict):
            raise InvalidRewardError("`rewards` in the last line is no object")
        found |= _named(value["rewards"])
    return found


def _named(given: Mapping[Any, Any]) -> Rewards:
    for name in given:
        if not isinstance(name, str) or not name:
            raise InvalidRewardError(f"a reward's name is of type {type(name).__name__}, or empty")
    return {name: finite(value, name) for name, value in given.items() if value is not None}
