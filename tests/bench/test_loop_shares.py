"""Shares of a loop's time, of steps and attempts whose times are known."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from tests.bench.loop_shares import Shares, shares

from headrace.schemas.ids import uuid7
from headrace.schemas.records import AttemptEvent, AttemptOrigin, TrainStep

SPENT = {"preparation": 1.0, "logprobs": 2.0, "training": 12.0, "sync": 5.0}


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(1_000_000 + seconds, UTC)


def step(number: int, ends: float, **durations_s: float) -> TrainStep:
    return TrainStep(
        run_id="run",
        step=number,
        algorithm="grpo",
        policy_version=number,
        batch_ids=(),
        durations_s=durations_s,
        time=at(ends),
    )


def attempt(start: float, end: float | None) -> list[AttemptEvent]:
    ids = {"rollout_id": uuid7(), "attempt_id": uuid7()}
    origin = AttemptOrigin(group_id="group")
    found = [AttemptEvent(**ids, kind="started", status="preparing", origin=origin, time=at(start))]
    if end is not None:
        found.append(AttemptEvent(**ids, kind="ended", status="succeeded", time=at(end)))
    return found


@pytest.mark.parametrize(
    ("attempts", "generation"),
    [
        pytest.param([(10.0, 30.0)], 20.0, id="one"),
        pytest.param([(10.0, 30.0), (20.0, 50.0)], 40.0, id="at-once"),
        pytest.param([(10.0, 30.0), (12.0, 20.0), (40.0, 50.0)], 30.0, id="in-turn"),
        pytest.param([(-50.0, 30.0)], 30.0, id="from-before"),
        pytest.param([(60.0, 95.0)], 20.0, id="while-it-trains"),
        pytest.param([(70.0, None)], 10.0, id="never-ended"),
        pytest.param([], 0.0, id="none"),
    ],
)
def test_rollouts_count_while_the_trainer_waits(
    attempts: Sequence[tuple[float, float | None]], generation: float
) -> None:
    events = [event for each in attempts for event in attempt(*each)]
    found = shares([step(1, 0.0), step(2, 100.0, idle=80.0, **SPENT)], events)
    wanted = Shares(generation=generation, training=15.0, sync=5.0, idle=80.0 - generation)
    assert vars(found) == pytest.approx(vars(wanted), abs=1e-6)


def test_steps_are_summed_and_what_is_unaccounted_for_is_idle() -> None:
    steps = [step(1, 0.0), step(2, 100.0, idle=70.0, **SPENT), step(3, 200.0, idle=80.0, training=20.0)]
    found = shares(steps, attempt(0.0, 200.0))
    wanted = Shares(generation=75.0, training=17.5, sync=2.5, idle=5.0)
    assert vars(found) == pytest.approx(vars(wanted), abs=1e-6)
