"""The assembler's verdicts, and that they follow from the log alone (G3, G4, G5, G7, G8)."""

from typing import Any

import pytest
from tests.builders import CODEC, EPOCH_MS, PREFIX, Attempt, logged
from tests.streams.processors.assembling import Host, assemble

from headrace.schemas.records import AttemptEvent, Record, Reward, Span
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord


def test_a_complete_attempt_becomes_ordered_transitions() -> None:
    a = Attempt()
    records = [
        a.started(),
        a.call(2, prompt=(1, 2, 3, 4, 9), response=(5,), finish_reason="stop", resource_version=7),
        a.call(1, prompt=(1, 2), response=(3, 4)),
        a.span(3, name="tool"),
        a.reward(1.0),
        a.ended(3),
    ]
    trajectory = assemble(records)
    assert (trajectory.accepted, trajectory.reason, trajectory.outcome) == (True, None, 1.0)
    assert [t.sequence_id for t in trajectory.transitions] == [1, 2]
    assert [t.prefix_len for t in trajectory.transitions] == [0, 4]
    assert trajectory.transitions[1].prompt_suffix_token_ids == (9,)
    assert list(trajectory.prompts()) == [(1, 2), (1, 2, 3, 4, 9)]
    assert [t.reward for t in trajectory.transitions] == [1.0, 1.0]
    assert [t.is_last for t in trajectory.transitions] == [False, True]
    assert trajectory.transitions[1].resource_version == 7
    assert trajectory.num_events == 3


def test_a_prompt_that_leaves_the_earlier_ids_shares_only_what_is_equal_id_for_id() -> None:
    a = Attempt()
    trajectory = assemble(
        [a.started(), a.call(1, (1, 2), (3, 4)), a.call(2, (1, 2, 3, 8, 9), (5,)), a.reward(), a.ended(2)]
    )
    assert trajectory.transitions[1].prefix_len == 3
    assert list(trajectory.prompts())[1] == (1, 2, 3, 8, 9)


a = Attempt()
FULL = [a.started(), a.call(1), a.call(2), a.reward(), a.ended(2)]


@pytest.mark.parametrize(
    ("records", "accepted", "reason"),
    [
        pytest.param(FULL, True, None, id="complete"),
        pytest.param(
            [a.started(), a.call(1), a.reward(), a.ended(2), *a.closing()],
            False,
            "missing_sequence_ids",
            id="hole",
        ),
        pytest.param(
            [a.started(), a.call(1), a.call(2), a.ended(2), *a.closing()],
            False,
            "no_outcome_reward",
            id="no outcome",
        ),
        pytest.param(
            [a.started(), a.call(1), a.ended(1, "failed")], False, "attempt_failed", id="failed, complete"
        ),
        pytest.param(
            [a.started(), a.ended(None, "timeout"), *a.closing()], False, "attempt_timeout", id="timed out"
        ),
        pytest.param(
            [a.started(), a.call(1), a.reward(), a.ended(None), *a.closing()],
            False,
            "last_sequence_id_unknown",
            id="last id unknown",
        ),
        pytest.param([a.started(), a.reward(), a.ended(0)], False, "no_calls", id="no calls"),
        pytest.param(
            [a.started(), a.call(1, response=()), a.reward(), a.ended(1)],
            False,
            "no_trainable_calls",
            id="no token ids",
        ),
        pytest.param(
            [a.started(), a.call(1), a.span(2, kind="void"), a.reward(), a.ended(2)], True, None, id="void"
        ),
        pytest.param(
            [a.call(1), a.reward(), a.ended(1), *a.closing()], False, "never_started", id="no start"
        ),
        pytest.param(
            [a.started(), a.call(1), a.reward(1.0, 1), a.ended(1)],
            False,
            "sequence_id_conflict",
            id="conflict",
        ),
        pytest.param(
            [a.started(), a.call(1), a.reward(0.5, 2), a.ended(2)], True, None, id="outcome from within"
        ),
    ],
)
def test_verdicts(records: list[Record], accepted: bool, reason: str | None) -> None:  # noqa: FBT001
    trajectory = assemble(records)
    assert (trajectory.accepted, trajectory.reason) == (accepted, reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_logprobs": (-0.5,)}, "logprobs_mismatch"),
        ({"completion_tokens": 3}, "usage_mismatch"),
        ({"response_token_ids": (), "response_logprobs": ()}, "no_response_token_ids"),
        ({"prompt_token_ids": ()}, "no_prompt_token_ids"),
        ({"untrainable_reason": "client_disconnected"}, "client_disconnected"),
    ],
)
def test_calls_that_can_not_train_are_kept_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    """G6, C3, C6: one such call does not spoil the others."""
    a = Attempt()
    trajectory = assemble([a.started(), a.call(1), a.call(2, **fields), a.reward(), a.ended(2)])
    assert trajectory.accepted
    assert [(t.trainable, t.reason) for t in trajectory.transitions] == [(True, None), (False, reason)]


def test_no_reward_is_not_zero() -> None:
    """C1: an attempt without an outcome does not get one of 0."""
    trajectory = assemble([a.started(), a.call(1), a.call(2), a.ended(2), *a.closing()])
    assert trajectory.outcome is None
    assert [t.reward for t in trajectory.transitions] == [None, None]


def test_the_first_terminal_event_counts_and_later_ones_change_nothing() -> None:
    """G7, C1: the late success of an attempt that timed out is not trained."""
    trajectory = assemble(
        [a.started(), a.call(1), a.ended(None, "timeout"), a.ended(1), a.reward(), *a.closing()]
    )
    assert (trajectory.status, trajectory.accepted) == ("timeout", False)


def test_calls_are_selected_by_agent() -> None:
    a = Attempt(agents=["solver"])
    trajectory = assemble(
        [a.started(), a.call(1, agent="solver"), a.call(2, agent="judge"), a.reward(), a.ended(2)]
    )
    assert [t.agent for t in trajectory.transitions] == ["solver"]


def test_rewards_from_outside_count_until_the_outcome() -> None:
    a = Attempt(credit_rule="per_step@1")
    early = a.reward(0.25, name="style", about_sequence_id=1)
    late = a.reward(0.5, name="style", about_sequence_id=1)
    trajectory = assemble([a.started(), a.call(1), a.call(2), early, a.reward(1.0), late, a.ended(2)])
    assert [t.reward for t in trajectory.transitions] == [0.25, 1.0]
    assert early.reward_id in trajectory.reward_ids
    assert late.reward_id not in trajectory.reward_ids


def test_what_follows_a_closing_mark_in_its_partition_is_late() -> None:
    records = [a.started(), a.call(1), a.ended(2), *a.closing(), a.call(2), a.reward()]
    trajectory = assemble(records)
    assert trajectory.missing_sequence_ids == (2,)
    assert trajectory.outcome is None


def test_an_unknown_credit_rule_is_a_reason_and_not_a_crash() -> None:
    a = Attempt(credit_rule="mystery@9")
    assert assemble([a.started(), a.call(1), a.reward(), a.ended(1)]).reason == "unknown_credit_rule"


def test_bad_records_become_dead_letters_with_their_bytes_and_the_rest_goes_on() -> None:
    """G8, C9."""
    good = logged(FULL)
    span = good[1]
    assert span.value is not None
    bad = [
        span._replace(offset=100, value=b"\x01" + span.value[1:]),
        span._replace(offset=101, value=b"\x00\x7f\xff\xff\xff" + span.value[5:]),
        span._replace(offset=102, value=span.value[:-1]),
        span._replace(offset=103, value=good[0].value),
        span._replace(offset=104, value=None),
        span._replace(offset=105, key=b"another"),
    ]
    host = Host()
    host.feed([*bad, *good])
    assert len(host.trajectories) == 1
    assert host.trajectories[0].accepted
    letters = {letter.offset: letter for letter in host.dead_letters}
    assert {offset: letter.reason for offset, letter in letters.items()} == {
        100: "bad_record",
        101: "bad_record",
        102: "bad_record",
        103: "bad_record",
        104: "bad_record",
        105: "key_mismatch",
    }
    for record in bad:
        letter = letters[record.offset]
        assert (letter.value, letter.key_bytes, letter.topic) == (record.value, record.key, record.topic)


def test_finished_attempts_are_forgotten_and_still_known_as_finished() -> None:
    """C5, G5: nothing of an attempt stays but the mark; redelivery gives no second trajectory."""
    host = Host()
    log = logged(FULL)
    for record in log:
        host.feed([record])
    assert host.assembler.num_open == 0
    assert sorted(key[:1] for key, _ in host.state.scan(b"")) == [b"e", b"f"]
    for record in log:
        host.feed([record])
    host.restart()
    host.feed(log)
    assert len(host.trajectories) == 1
    assert host.assembler.num_open == 0


def test_the_mark_itself_goes_when_no_redelivery_is_possible() -> None:
    host = Host(finished_retention_s=100.0)
    host.feed(logged(FULL))
    later = EPOCH_MS + 10 * 60_000
    host.feed([record._replace(timestamp_ms=later) for record in logged([Attempt("b").started()])])
    assert [key[:1] for key, _ in host.state.scan(b"")] == [b"o"]


def test_an_import_of_old_traces_is_remembered_from_when_it_finished() -> None:
    """Their ids carry their own time, which may be long before the log's."""
    host = Host(finished_retention_s=100.0)
    now = EPOCH_MS + 365 * 24 * 3600 * 1000
    log = [record._replace(timestamp_ms=now) for record in logged(FULL)]
    host.feed(log)
    host.feed([record._replace(timestamp_ms=now + 61_000) for record in logged([Attempt("b").started()])])
    host.feed(log)
    assert len(host.trajectories) == 1


def test_of_two_runs_of_one_task_the_first_in_the_log_counts() -> None:
    """G5: a task may reach two runners; each gives its run an id of its own, and one of them trains."""
    one, two = Attempt("one", dispatched=True), Attempt("two", dispatched=True)
    two.rollout_id = one.rollout_id
    second = [two.started(), two.call(1), two.reward(), two.ended(1)]
    host = Host()
    host.feed(logged([one.started(), *second, one.call(1), one.reward(), one.ended(1)]))
    assert {t.attempt_id: (t.reason, t.is_final) for t in host.trajectories} == {
        one.attempt_id: (None, True),
        two.attempt_id: ("superseded", False),
    }


def test_the_first_is_so_by_the_attempts_log_whatever_a_batch_begins_with() -> None:
    """G4: a fetch may hold the second run's spans before either start."""
    one, two = Attempt("one", dispatched=True), Attempt("two", dispatched=True)
    two.rollout_id = one.rollout_id
    records = [two.call(1), one.started(), two.started(), two.reward(), two.ended(1)]
    host = Host()
    host.feed(logged([*records, one.call(1), one.reward(), one.ended(1)]))
    assert {t.attempt_id: t.reason for t in host.trajectories} == {
        one.attempt_id: None,
        two.attempt_id: "superseded",
    }


def test_who_starts_a_cancelled_attempt_comes_too_late() -> None:
    a, late = Attempt("never"), Attempt("late", dispatched=True)
    late.rollout_id = a.rollout_id
    cancelled = a.ended(None, "cancelled").model_copy(update={"runner_id": "dispatcher"})
    host = Host()
    host.feed(logged([cancelled, late.started(), late.call(1), late.reward(), late.ended(1)]))
    host.feed(logged([*(a.started() for _ in range(9)), *a.closing(), *a.closing()])[-4:])
    assert {t.attempt_id: t.reason for t in host.trajectories} == {
        late.attempt_id: "superseded",
        a.attempt_id: "attempt_cancelled",
    }


@pytest.mark.parametrize(
    ("origin", "attempt", "status", "is_final"),
    [
        pytest.param({}, 1, "failed", True, id="nobody tries it again"),
        pytest.param({"max_attempts": 3, "retry_on": ["timeout"]}, 1, "timeout", False, id="tried again"),
        pytest.param({"max_attempts": 3, "retry_on": ["timeout"]}, 3, "timeout", True, id="no more tries"),
        pytest.param({"max_attempts": 3, "retry_on": ["timeout"]}, 1, "failed", True, id="not on this end"),
        pytest.param({"max_attempts": 3, "retry_on": ["timeout"]}, 1, "succeeded", True, id="success"),
        pytest.param({"max_attempts": 3, "retry_on": ["cancelled"]}, 1, "cancelled", True, id="cancelled"),
    ],
)
def test_the_last_attempt_of_a_rollout_says_so(
    origin: dict[str, Any],
    attempt: int,
    status: str,
    is_final: bool,  # noqa: FBT001
) -> None:
    a = Attempt(**origin)
    started, ended = a.started(), a.ended(0, status)
    events = [event.model_copy(update={"attempt": attempt}) for event in (started, ended)]
    assert assemble([*events, *a.closing()]).is_final is is_final


def test_an_attempt_that_never_started_is_known_by_the_dispatcher_s_end() -> None:
    a = Attempt(group_id="eight", group_size=8, mode="val", dispatched=True)
    cancelled = a.ended(None, "cancelled").model_copy(update={"runner_id": "dispatcher", "origin": a.origin})
    trajectory = assemble([cancelled, *a.closing()])
    assert (trajectory.group_id, trajectory.group_size, trajectory.mode) == ("eight", 8, "val")
    assert (trajectory.accepted, trajectory.is_final) == (False, True)


def test_a_deadline_is_written_to_the_log_and_decides_from_there() -> None:
    host = Host(straggler_grace_s=5.0)
    host.feed(logged([a.started(), a.call(1), a.ended(2)]))
    assert host.assembler.tick(1_000_000) == []
    assert host.assembler.tick(1_029_999) == []  # reward_grace_s is 30
    marks = host.assembler.tick(1_030_000)
    assert {mark.topic for mark in marks} == {topic_name(Span, PREFIX), topic_name(Reward, PREFIX)}
    assert host.trajectories == []  # a timer decides nothing
    host.feed([LogRecord(mark.topic, 0, 50 + i, 0, mark.key, mark.value) for i, mark in enumerate(marks)])
    assert host.trajectories[0].reason == "missing_sequence_ids"
    assert host.assembler.tick(9_000_000) == []


def test_events_after_the_end_do_not_postpone_the_deadline() -> None:
    host = Host()
    log = logged([a.started(), a.ended(9), *(a.call(i) for i in range(1, 9))])
    host.feed(log[:2])
    host.assembler.tick(0)
    for i, record in enumerate(log[2:]):
        host.feed([record])
        assert host.assembler.tick(i * 1000) == []
    assert len(host.assembler.tick(30_000)) == 2


def test_an_attempt_that_falls_silent_is_ended() -> None:
    host = Host(orphan_after_s=60.0)
    host.feed(logged([a.call(1)]))
    host.assembler.tick(0)
    (end,) = host.assembler.tick(60_000)
    event = CODEC.decode(end.value, AttemptEvent)
    assert (event.kind, event.status, event.attempt_id) == ("ended", "unresponsive", a.attempt_id)


def test_a_trajectory_over_the_record_limit_is_reported_and_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.processors.assembler.MAX_RECORD_BYTES", 300)
    trajectory = assemble(FULL)
    assert (trajectory.reason, trajectory.transitions) == ("too_large", ())
