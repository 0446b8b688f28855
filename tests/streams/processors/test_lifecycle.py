"""G7: every pair of state and event, legal or not."""

from itertools import product
from typing import Any, get_args

import pytest
from tests.builders import Attempt

from headrace.schemas.records import RolloutConfig
from headrace.schemas.records.rollout import RolloutStateName
from headrace.streams.processors.lifecycle import (
    ATTEMPT,
    FINAL,
    ROLLOUT,
    AttemptStep,
    RolloutStep,
    attempt_step,
    rollout_step,
)

X = None
# One row a state, one column an event; X: the event changes nothing.
ROLLOUT_EVENTS = ["start_preparing", "start_running", "run", "succeed", "retry", "fail", "cancel"]
ROLLOUT_TABLE: dict[str, list[Any]] = {
    "queuing": ["preparing", "running", X, X, X, X, "cancelled"],
    "preparing": [X, X, "running", "succeeded", "requeuing", "failed", "cancelled"],
    "running": [X, X, X, "succeeded", "requeuing", "failed", "cancelled"],
    "requeuing": ["preparing", "running", X, X, X, X, "cancelled"],
    "succeeded": [X, X, X, X, X, X, X],
    "failed": [X, X, X, X, X, X, X],
    "cancelled": [X, X, X, X, X, X, X],
}
ATTEMPT_EVENTS = [
    *("start_preparing", "start_running", "run"),
    *("succeeded", "failed", "timeout", "unresponsive", "cancelled"),
]
ENDS = ATTEMPT_EVENTS[3:]
ATTEMPT_TABLE: dict[str, list[Any]] = {
    "new": ["preparing", "running", X, X, X, X, X, "cancelled"],
    "preparing": [X, X, "running", *ENDS],
    "running": [X, X, X, *ENDS],
    **{end: [X] * 8 for end in ENDS},
}


def cells(table: dict[str, list[Any]], events: list[str]) -> list[tuple[str, str, str | None]]:
    return [
        (state, event, new) for state, row in table.items() for event, new in zip(events, row, strict=True)
    ]


@pytest.mark.parametrize(("state", "event", "new"), cells(ROLLOUT_TABLE, ROLLOUT_EVENTS))
def test_every_event_in_every_state_of_a_rollout(state: str, event: str, new: str | None) -> None:
    assert dict[Any, Any](ROLLOUT).get((state, event)) == new


@pytest.mark.parametrize(("state", "event", "new"), cells(ATTEMPT_TABLE, ATTEMPT_EVENTS))
def test_every_event_in_every_state_of_an_attempt(state: str, event: str, new: str | None) -> None:
    assert dict[Any, Any](ATTEMPT).get((state, event)) == new


def test_the_tables_are_whole() -> None:
    assert set(ROLLOUT_TABLE) == set(get_args(RolloutStateName))
    assert set(ROLLOUT_EVENTS) == set(get_args(RolloutStep))
    assert set(ATTEMPT_EVENTS) >= {word for word in get_args(AttemptStep) if isinstance(word, str)}
    assert len(ROLLOUT) == sum(new is not None for row in ROLLOUT_TABLE.values() for new in row)
    assert len(ATTEMPT) == sum(new is not None for row in ATTEMPT_TABLE.values() for new in row)


def test_nothing_leads_out_of_a_final_state() -> None:
    assert not [pair for pair in product(FINAL, ROLLOUT_EVENTS) if pair in ROLLOUT]


@pytest.mark.parametrize(
    ("end", "attempt", "max_attempts", "retry_on", "expected"),
    [
        ("succeeded", 1, 3, ("failed",), "succeed"),
        ("failed", 1, 3, ("failed",), "retry"),
        ("failed", 2, 3, ("failed",), "retry"),
        ("failed", 3, 3, ("failed",), "fail"),
        ("failed", 1, 1, ("failed",), "fail"),
        ("failed", 1, 3, (), "fail"),
        ("timeout", 1, 3, ("failed",), "fail"),
        ("timeout", 1, 3, ("timeout",), "retry"),
        ("unresponsive", 1, 3, ("unresponsive",), "retry"),
        ("cancelled", 1, 3, ("cancelled",), "cancel"),
    ],
)
def test_what_is_tried_again(
    end: str, attempt: int, max_attempts: int, retry_on: tuple[str, ...], expected: str
) -> None:
    config = RolloutConfig.model_validate({"max_attempts": max_attempts, "retry_on": retry_on})
    assert rollout_step(attempt_step(Attempt().ended(None, end)), attempt, config) == expected
