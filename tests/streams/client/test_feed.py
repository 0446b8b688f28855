"""What is fed when, how much of it, and what a run remembers (C2, C15)."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.builders import TIME

from headrace.schemas.records import GroupVerdict, ResourceVersion, TrainStep
from headrace.streams.client.feed_ledger import FeedLedger
from headrace.streams.client.feed_plan import FeedPlan
from headrace.streams.client.feed_settings import FeederSettings
from headrace.streams.client.feed_state import FeedState, FeedStateError, RoundState
from headrace.streams.client.feed_validation import Validation, ValidationReport

TOPIC = "p.trajectories.v1"


def plan(**options: Any) -> FeedPlan:
    defaults = {"num_tasks": 5, "epochs": 3, "group_size": 2, "seed": 7}
    return FeedPlan("run", 1_000, **(defaults | options))


def verdict(group_id: str, batch_id: str | None = "b", **fields: Any) -> GroupVerdict:
    defaults: dict[str, Any] = {
        "group_id": group_id,
        "status": "batched" if batch_id else "excluded",
        "reason": None if batch_id else "no_contrast",
        "batch_id": batch_id,
        "source_partition": 0,
        "ready_offset": 4,
        "first_at": TIME,
        "ready_at": TIME,
        "time": TIME,
    }
    return GroupVerdict(**(defaults | fields))


def version(number: int, **fields: Any) -> ResourceVersion:
    return ResourceVersion(name="policy", version=number, kind="weights", time=TIME, **fields)


def step(*batch_ids: str, num_steps: int | None) -> TrainStep:
    return TrainStep(
        run_id="r",
        step=3,
        algorithm="grpo",
        policy_version=1,
        batch_ids=batch_ids,
        num_steps=num_steps,
        time=TIME,
    )


@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_every_task_comes_once_an_epoch_under_ids_of_its_own(tasks: int, epochs: int, seed: int) -> None:
    made = plan(num_tasks=tasks, epochs=epochs, seed=seed)
    groups = [made.group(number) for number in range(len(made))]
    assert sorted((group.epoch, group.task_index) for group in groups) == [
        (epoch, task) for epoch in range(epochs) for task in range(tasks)
    ]
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids]
    assert len(set(ids)) == len(ids) == 2 * len(made)
    assert len({group.group_id for group in groups}) == len(groups)
    again = plan(num_tasks=tasks, epochs=epochs, seed=seed)
    assert [again.group(number) for number in reversed(range(len(made)))] == groups[::-1]


def test_epochs_have_orders_of_their_own_unless_asked_not_to() -> None:
    made = plan(num_tasks=20)
    orders = [[made.group(20 * epoch + place).task_index for place in range(20)] for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert [plan(shuffle=False).group(number).task_index for number in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        made.group(60)


def test_another_run_has_other_ids() -> None:
    other = FeedPlan("other", 1_000, num_tasks=5, epochs=3, group_size=2, seed=7)
    assert other.group(0).task_index == plan().group(0).task_index
    assert other.group(0).group_id != plan().group(0).group_id
    assert plan().round(3, 2, 1)[0].group_id not in {plan().group(number).group_id for number in range(15)}


def ledger(*, max_in_flight: int = 4, max_ahead: int | None = None) -> FeedLedger:
    made = FeedLedger(TOPIC, max_in_flight=max_in_flight, max_ahead=max_ahead)
    for number in range(4):
        made.add(f"g{number}")
    return made


def test_a_verdict_makes_room() -> None:
    made = ledger()
    assert made.room() == 0
    made.settle(verdict("g0"))
    made.settle(verdict("g0", "another"))
    made.settle(verdict("of another run"))
    made.settle(verdict("g1", None))
    assert (made.room(), made.num_in_flight) == (2, 2)
    assert made.fates == {"batched": 1, "no_contrast": 1}


@pytest.mark.parametrize(
    "trained",
    [
        pytest.param({"trained_on": ("b",)}, id="by batch"),
        pytest.param({"consumed_offsets": {f"{TOPIC}:0": 5, "p.batches.v1:0": 1}}, id="by offset"),
    ],
)
def test_where_staleness_is_bounded_only_training_makes_room(trained: dict[str, Any]) -> None:
    """C15: batches that wait for the trainer count, or feeding would run ahead of it."""
    made = ledger(max_in_flight=99, max_ahead=4)
    made.settle(verdict("g0"))
    assert (made.room(), made.num_in_flight, made.num_ahead) == (0, 3, 4)
    made.advance(version(1, consumed_offsets={f"{TOPIC}:0": 4, f"{TOPIC}:1": 99, "other:0": 99}))
    assert made.room() == 0
    made.advance(version(2, **trained))
    assert made.room() == 1
    made.settle(verdict("g1"))  # told after the version that it is in
    assert made.room() == 2
    made.settle(verdict("g2", None))
    assert made.room() == 3


@pytest.mark.parametrize(
    ("num_steps", "room"),
    [
        pytest.param(0, 2, id="passed over"),
        pytest.param(2, 0, id="trained on, in no version yet"),
        pytest.param(None, 0, id="not said"),
    ],
)
@pytest.mark.parametrize("is_told_first", [False, True])
def test_a_batch_without_a_step_makes_room(num_steps: int | None, room: int, *, is_told_first: bool) -> None:
    """No version will ever tell of it; whether its verdicts or the trainer's word come first."""
    made = ledger(max_in_flight=99, max_ahead=4)
    if is_told_first:
        made.pass_over(step("b", num_steps=num_steps))
    made.settle(verdict("g0"))
    made.settle(verdict("g1"))
    made.settle(verdict("g2", "else"))
    if not is_told_first:
        made.pass_over(step("b", num_steps=num_steps))
    assert made.room() == room
    assert made.num_ahead == 4 - room


def restored(made: FeedLedger, **options: Any) -> FeedLedger:
    """As after a restart."""
    state = type(made.state()).model_validate_json(made.state().model_dump_json())
    again = FeedLedger(TOPIC, **({"max_in_flight": 99, "max_ahead": 9} | options))
    again.restore(state, made.num_fed, lambda index: f"g{index}")
    return again


def test_a_ledger_goes_on_from_its_state() -> None:
    made = ledger(max_in_flight=99, max_ahead=9)
    made.pass_over(step("told early", num_steps=0))
    made.settle(verdict("g2", "b", ready_offset=7, outcome_mean=0.5))
    made.settle(verdict("g1", "b", ready_offset=4))
    made.settle(verdict("g0", None))
    again = restored(made)
    assert (again.num_in_flight, again.num_ahead, again.room()) == (1, 3, 6)
    assert again.fates == {"batched": 2, "no_contrast": 1}
    assert again.recent_outcome == 0.5
    for each in (verdict("g0", None), verdict("g1", "b", ready_offset=4)):
        again.settle(each)  # read again
    assert sum(again.fates.values()) == 3
    again.advance(version(1, consumed_offsets={f"{TOPIC}:0": 7}))
    assert again.num_ahead == 3
    again.settle(verdict("g3", "told early"))
    assert again.num_ahead == 2
    again.advance(version(2, consumed_offsets={f"{TOPIC}:0": 8}))
    assert (again.num_ahead, again.room()) == (0, 9)
    again.add("g4")
    assert again.state().in_flight == (4,)
    assert restored(made, max_ahead=None).num_ahead == 1


def test_a_ledger_s_state_is_of_what_is_not_over() -> None:
    """It is rewritten often, and a run may be long."""
    made = FeedLedger(TOPIC, max_in_flight=4, max_ahead=4)
    largest = 0
    for number in range(200):
        made.add(f"g{number}")
        made.pass_over(step(f"b{number}", num_steps=0))
        made.settle(verdict(f"g{number}", f"b{number}", outcome_mean=0.5))
        largest = max(largest, len(made.state().model_dump_json()))
    assert largest < 600
    assert made.fates == {"batched": 200}


def test_groups_whose_verdicts_are_gone_are_not_waited_for() -> None:
    made = ledger()
    made.settle(verdict("g0"))
    assert made.expire() == 3
    assert (made.room(), made.num_in_flight) == (4, 0)
    assert made.fates == {"batched": 1, "verdict_expired": 3}
    assert (made.expire(), made.is_in_flight("g1")) == (0, False)


def test_outcomes_are_means_over_the_last_groups() -> None:
    made = ledger()
    assert made.recent_outcome is None
    made.settle(verdict("g0", outcome_mean=0.25))
    made.settle(verdict("g1", outcome_mean=0.75))
    made.settle(verdict("g2", None))
    assert made.recent_outcome == 0.5


@pytest.mark.parametrize(
    ("options", "versions", "expected"),
    [
        ({"every": 2, "at_start": False}, [0, 1, 2, 3, 4, 7], [2, 4, 7]),
        ({"every": 2, "at_start": True}, [0, 1, 2, 3], [0, 2]),
        ({"every": 0, "at_start": True}, [0, 1, 2], [0]),
        ({"every": 0, "at_start": False}, [0, 1, 2], []),
    ],
)
def test_rounds_come_every_few_versions(
    options: dict[str, Any], versions: list[int], expected: list[int]
) -> None:
    validation = Validation(**options)
    for newest in versions:
        if validation.due(newest):
            validation.begin(newest, ["g"], 1)
    assert validation.versions == expected


def test_a_round_s_report_counts_what_failed_apart_from_what_was_scored() -> None:
    validation = Validation(every=1, at_start=False)
    validation.begin(3, ["a", "b", "c"], 2)
    fields = {"mode": "val", "policy_version_min": 3, "policy_version_max": 3}
    assert validation.settle(verdict("a", None, num_accepted=2, outcome_mean=0.5, **fields)) is None
    assert validation.settle(verdict("b", None, num_accepted=1, outcome_mean=1.0, **fields)) is None
    assert validation.settle(verdict("b", None, num_accepted=1, outcome_mean=1.0, **fields)) is None
    assert validation.num_left == 1
    report = validation.settle(verdict("c", None, num_accepted=0))
    assert report == ValidationReport(3, 3, 6, 3, 2 / 3, is_mixed=False)
    assert validation.num_left == 0


def test_a_round_goes_on_from_its_state() -> None:
    fields = {"mode": "val", "policy_version_min": 3, "policy_version_max": 4}
    before = Validation(every=1, at_start=False)
    before.begin(3, ["a", "b", "c"], 2)
    before.settle(verdict("b", None, num_accepted=2, outcome_mean=0.5, **fields))
    (state,) = before.rounds().values()
    assert state == RoundState(left=(0, 2), num_scored=2, total=1.0, is_mixed=True)
    after = Validation(every=1, at_start=False)
    after.begin(3, ["a", "b", "c"], 2, RoundState.model_validate_json(state.model_dump_json()))
    assert [after.is_left(group) for group in "abc"] == [True, False, True]
    assert after.settle(verdict("b", None, num_accepted=2, outcome_mean=0.5)) is None
    assert after.settle(verdict("a", None, num_accepted=2, outcome_mean=1.0)) is None
    report = after.settle(verdict("c", None, num_accepted=0))
    assert report == ValidationReport(3, 3, 6, 2, 0.75, is_mixed=True)
    assert (after.rounds(), after.expire()) == ({}, [])
    assert (before.expire(), before.num_left) == ([3], 0)


def test_a_report_says_when_other_versions_had_a_part() -> None:
    validation = Validation(every=1, at_start=False)
    validation.begin(3, ["a"], 1)
    report = validation.settle(verdict("a", None, policy_version_min=3, policy_version_max=4))
    assert report is not None
    assert report.is_mixed


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "feed.json"
    assert FeedState.load(path) is None
    state = FeedState(run="r", began_ms=5, tasks="hash", next_index=7, val_versions=(1,), groups_from={0: 3})
    state.save(path)
    assert FeedState.load(path) == state
    assert [each.name for each in path.parent.iterdir()] == ["feed.json"]
    state.check(run="r", tasks="hash", path=path)
    with pytest.raises(FeedStateError, match="of another run"):
        state.check(run="other", tasks="hash", path=path)
    with pytest.raises(FeedStateError, match="of another set of tasks"):
        state.check(run="r", tasks="other", path=path)
    path.write_text('{"run": 3}')
    with pytest.raises(FeedStateError, match="is not the state of a feeder"):
        FeedState.load(path)


def test_a_state_of_before_there_was_more_to_remember_is_read(tmp_path: Path) -> None:
    path = tmp_path / "feed.json"
    path.write_text(
        '{"run": "r", "began_ms": 5, "tasks": "hash", "next_index": 7, "again_from": 3, "val_versions": [1], '
        '"groups_from": {"0": 3}}'
    )
    state = FeedState.load(path)
    assert state is not None
    assert (state.next_index, state.groups_from, state.steps_from) == (7, {0: 3}, {})
    assert (state.ledger, state.rounds) == (None, None)


def test_a_bound_needs_both_of_its_numbers() -> None:
    assert FeederSettings(max_staleness=2, groups_per_version=16).max_ahead_groups == 48
    assert FeederSettings().max_ahead_groups is None
    with pytest.raises(ValidationError, match="give both, or none"):
        FeederSettings(max_staleness=2)
