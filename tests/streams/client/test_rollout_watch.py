"""What a watch makes of a log, whatever the log repeats."""

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import TIME, an_id

from headrace.schemas.errors import FatalError
from headrace.schemas.records import RolloutCommand, RolloutState
from headrace.schemas.records.rollout import RolloutStateName
from headrace.streams.client.rollout_errors import UnknownRolloutError, WaitTimeoutError
from headrace.streams.client.rollout_watch import Watch, queuing_state
from headrace.streams.client.rollouts import is_over, timed_out

A, B, C = (an_id("rollout", name) for name in "abc")
LIFE: tuple[RolloutStateName, ...] = ("queuing", "running", "requeuing", "running", "succeeded")


def a_state(rollout_id: str, revision: int, life: tuple[RolloutStateName, ...] = LIFE) -> RolloutState:
    name = life[revision - 1]
    return RolloutState(
        rollout_id=rollout_id,
        group_id="group",
        state=name,
        is_final=name in {"succeeded", "failed", "cancelled"},
        revision=revision,
        attempt=revision // 2,
        time=TIME + timedelta(seconds=revision),
    )


def an_enqueue(rollout_id: str) -> RolloutCommand:
    return RolloutCommand(kind="enqueue", rollout_id=rollout_id, group_id="group", task_id="t", time=TIME)


def a_watch(*rollout_ids: str) -> Watch:
    return Watch(rollout_ids, lambda: None)


@given(
    seen=st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, len(LIFE))), max_size=40),
    drains=st.sets(st.integers(0, 40)),
)
def test_the_highest_revision_counts_and_a_final_state_comes_once(
    seen: list[tuple[str, int]], drains: set[int]
) -> None:
    """G7, C2: duplicates, replays from the beginning and any order change nothing."""
    watch = a_watch(A, B)
    drained: list[RolloutState] = []
    for index, (rollout_id, revision) in enumerate(seen):
        watch.see(a_state(rollout_id, revision))
        if index in drains:
            drained += watch.drain()
    drained += watch.drain()
    for rollout_id in (A, B):
        revisions = [revision for each, revision in seen if each == rollout_id]
        state = watch.states()[rollout_id]
        assert (state.revision if state else 0) == max(revisions, default=0)
        told = [each.revision for each in drained if each.rollout_id == rollout_id]
        assert told == sorted(set(told))
        assert told[-1:] == ([max(revisions)] if revisions else [])
    finals = {rollout_id for rollout_id, revision in seen if revision == len(LIFE)}
    assert watch.is_finished == (finals == {A, B})


def test_after_a_final_state_nothing_counts() -> None:
    watch = a_watch(A)
    watch.see(a_state(A, 2, ("queuing", "cancelled")))
    watch.see(a_state(A, 4))
    watch.see(a_state(A, 5))
    assert [state.state for state in watch.drain()] == ["cancelled"]


def test_an_enqueued_rollout_is_queuing_until_something_else_is_said() -> None:
    watch = a_watch(A, B)
    watch.see(a_state(B, 2))
    watch.see_command(an_enqueue(A))
    watch.see_command(an_enqueue(B))
    watch.see_command(an_enqueue(A).model_copy(update={"kind": "cancel"}))
    assert {key: state and state.state for key, state in watch.states().items()} == {
        A: "queuing",
        B: "running",
    }
    assert watch.states()[A] == queuing_state(an_enqueue(A))


def test_a_cancel_command_alone_says_nothing() -> None:
    watch = a_watch(A)
    watch.see_command(an_enqueue(A).model_copy(update={"kind": "cancel"}))
    watch.catch_up()
    with pytest.raises(UnknownRolloutError, match=A):
        is_over(watch)


def test_unknown_rollouts_are_told_only_when_the_log_is_read() -> None:
    watch = a_watch(A, B)
    watch.see(a_state(A, 5))
    assert not is_over(watch)
    watch.catch_up()
    with pytest.raises(UnknownRolloutError, match=f"no such rollout: {B}"):
        is_over(watch)


def test_what_ends_the_reading_reaches_who_waits() -> None:
    told = threading.Event()
    watch = Watch([A], told.set)
    watch.fail(FatalError("away"))
    assert told.is_set()
    for ask in (watch.drain, watch.is_caught_up):
        with pytest.raises(FatalError, match="away"):
            ask()


def test_a_timeout_says_what_it_waited_for() -> None:
    """C14, C18."""
    watch = a_watch(A, B, C)
    watch.see(a_state(A, 5))
    watch.see(a_state(B, 4))
    watch.see(a_state(C, 1))
    error = timed_out(watch, 1.5)
    assert isinstance(error, WaitTimeoutError)
    assert str(error) == (
        f"after 1.5 s 2 of 3 rollouts are not final. 1 queuing: {C}; 1 running (attempt 2): {B}"
    )
    assert error.states == {B: a_state(B, 4), C: a_state(C, 1)}


def test_a_timeout_of_many_names_some() -> None:
    ids = [an_id("many", number) for number in range(100)]
    watch = a_watch(*ids)
    words = str(timed_out(watch, 60))
    assert "100 not looked up yet" in words
    assert words.count(",") == 4
    assert words.endswith("…")
