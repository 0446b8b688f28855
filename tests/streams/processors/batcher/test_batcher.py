"""Groups that are ready become batches, and each group has one fate (G4, G5, G8, C14, C15)."""

from typing import Any

import pytest
from tests.builders import CODEC, EPOCH_MS, PREFIX
from tests.streams.processors.batcher.scene import (
    TRAJECTORIES,
    Host,
    batch_wait,
    deadline,
    pair,
    trajectory,
    transition,
)

from headrace.schemas.records import BatchShard, GroupVerdict, Trajectory
from headrace.schemas.topics import topic_name
from headrace.streams.processors.batcher.batcher import BATCH_WAIT
from headrace.streams.processors.batcher.group import DEADLINE


def test_groups_that_are_whole_fill_a_batch_in_the_order_in_which_they_are_ready() -> None:
    host = Host()
    a, b, c = pair("a"), pair("b"), pair("c")
    host.feed(a[0], b[0], c[0], c[1], a[1])
    assert host.batches == [["a", "c"]]
    (shard,) = host.shards
    assert shard.trajectories == tuple(sorted([*a, *c], key=lambda t: (t.group_id, t.rollout_id)))
    assert (shard.source_partition, shard.last_offset) == (0, 4)
    assert set(host.verdicts) == {"a", "c"}
    host.feed(b[1], batch_wait("b"))
    assert host.batches == [["a", "c"], ["b"]]


def test_a_verdict_says_what_was_in_the_group_and_when() -> None:
    host = Host(batch_groups=1)
    calls = [(transition(0, resource_version=3), transition(1, resource_version=5)), (transition(),)]
    for number, transitions in enumerate(calls):
        one = trajectory("g", number, float(number), transitions=transitions, mode="train")
        host.feed(one, time_ms=EPOCH_MS + number * 1000)
    verdict = host.verdicts["g"]
    assert (verdict.status, verdict.reason, verdict.batch_id) == ("batched", None, host.shards[0].batch_id)
    assert (verdict.group_size, verdict.num_rollouts, verdict.num_accepted) == (2, 2, 2)
    assert (verdict.policy_version_min, verdict.policy_version_max, verdict.staleness) == (1, 5, 4)
    assert (verdict.outcome_mean, verdict.outcome_std, verdict.num_tokens) == (0.5, 0.5, 15)
    assert (verdict.ready_at - verdict.first_at).total_seconds() == 1
    assert verdict.ready_offset == 1
    assert verdict.task_id == "task of g"


def test_only_a_rollout_s_last_attempt_counts_and_each_rollout_once() -> None:
    """C1, C2: what was tried again, published twice or came late is not in the batch."""
    host = Host(batch_groups=1)
    first, second = pair("g")
    retried = trajectory("g", 0, None, accepted=False, is_final=False, attempt=1)
    last = trajectory("g", 0, 0.0, attempt=2)
    host.feed(retried, last, last, trajectory("g", 0, 0.75, attempt=3), second, first)
    (shard,) = host.shards
    assert [t.attempt_id for t in shard.trajectories] == [last.attempt_id, second.attempt_id]
    assert host.verdicts["g"].num_rollouts == 2
    assert host.batcher.counts["late"] == 1
    assert host.batcher.counts["duplicates"] == 2


def test_rejected_rollouts_make_a_group_whole_and_are_in_no_batch() -> None:
    host = Host(batch_groups=1)
    rejected = trajectory("g", 2, None, accepted=False, group_size=3)
    host.feed(*pair("g", group_size=3), rejected)
    assert [t.accepted for t in host.shards[0].trajectories] == [True, True]
    assert (host.verdicts["g"].num_rollouts, host.verdicts["g"].num_accepted) == (3, 2)


FAILED = [trajectory("g", number, None, accepted=False) for number in range(2)]
UNTRAINABLE = (transition(trainable=False, reason="logprobs_mismatch"),)


@pytest.mark.parametrize(
    ("options", "group", "reason"),
    [
        pytest.param({}, pair("g", mode="val"), "mode_val", id="validation"),
        pytest.param({}, pair("g", mode="test"), "mode_test", id="test"),
        pytest.param({}, FAILED, "too_few_accepted", id="none accepted"),
        pytest.param({"min_rollouts": 3}, pair("g"), "too_few_accepted", id="too few accepted"),
        pytest.param({}, pair("g", transitions=UNTRAINABLE), "no_trainable_calls", id="nothing to train on"),
        pytest.param({}, pair("g", 1.0, 1.0), "no_contrast", id="all alike"),
        pytest.param({"require_contrast": False}, pair("g", 1.0, 1.0), None, id="all alike, and wanted"),
        pytest.param({"batch_tokens": 9}, pair("g"), "too_large", id="over the token budget"),
        pytest.param({"batch_tokens": 10}, pair("g"), None, id="at the token budget"),
    ],
)
def test_exclusions(options: dict[str, Any], group: list[Trajectory], reason: str | None) -> None:
    host = Host(**({"batch_groups": 1} | options))
    host.feed(*group)
    assert host.reasons() == {"g": reason}
    assert len(host.shards) == (reason is None)


def test_without_outcomes_it_is_the_credited_rewards_that_differ() -> None:
    host = Host(batch_groups=1)
    calls = [(transition(reward=reward),) for reward in (0.25, 0.5)]
    host.feed(*(trajectory("g", number, None, transitions=each) for number, each in enumerate(calls)))
    assert host.reasons() == {"g": None}
    assert host.verdicts["g"].outcome_mean is None


@pytest.mark.parametrize(
    ("rule", "rewards", "reason"),
    [
        pytest.param("per_step@1", [(0.0, 1.0), (1.0, 1.0)], None, id="sums differ"),
        pytest.param("per_step@1", [(1.0,), (1.0, 1.0)], None, id="sums of equal rewards differ"),
        pytest.param("per_step@1", [(0.0, 1.0), (0.5, 0.5)], None, id="rewards of one sum differ"),
        pytest.param("per_step@1", [(0.0, 1.0), (1.0, 0.0)], "no_contrast", id="the same in another order"),
        pytest.param("per_step@1", [(None, 1.0), (1.0,)], "no_contrast", id="a call without one"),
        pytest.param("outcome@1", [(1.0,), (1.0, 1.0)], "no_contrast", id="one outcome, more calls"),
    ],
)
def test_with_equal_outcomes_it_is_the_credited_rewards_that_may_differ(
    rule: str, rewards: list[tuple[float | None, ...]], reason: str | None
) -> None:
    host = Host(batch_groups=1)
    for number, each in enumerate(rewards):
        calls = tuple(transition(step, reward=reward) for step, reward in enumerate(each))
        host.feed(trajectory("g", number, 1.0, transitions=calls, credit_rule=rule))
    assert host.reasons() == {"g": reason}


def settled(host: Host) -> list[tuple[float, int]]:
    return [(shard.settled_outcome_sum, shard.settled_num_outcomes) for shard in host.shards]


def test_a_batch_says_how_all_groups_did_that_were_settled_since_the_one_before() -> None:
    """Those that are in it, and those that are in none for whatever reason; but for validation."""
    host = Host(batch_groups=1, max_staleness=4)
    host.feed(*pair("alike", 1.0, 1.0), *pair("val", mode="val"), *pair("a", 0.0, 0.5))
    failed = [trajectory("failed", number, 9.0, accepted=False) for number in range(2)]
    seen = trajectory("other", 0, transitions=(transition(resource_version=9),), mode="val")
    host.feed(*failed, seen, *pair("stale", 0.0, 0.25), trajectory("late", 0, 0.125), deadline("late"))
    fresh = (transition(resource_version=9),)
    host.feed(*pair("b", 0.0, 1.0, transitions=fresh), *pair("c", 0.5, 0.25, transitions=fresh))
    assert host.batches == [["a"], ["b"], ["c"]]
    assert settled(host) == [(2.5, 4), (1.375, 5), (0.75, 2)]


def test_a_group_that_does_not_fit_counts_in_the_batch_that_it_is_in() -> None:
    host = Host(batch_groups=9, batch_tokens=25)
    host.feed(*pair("a"), *pair("b", 0.0, 0.5), *pair("c", 0.0, 0.25), batch_wait("c"))
    assert settled(host) == [(1.5, 4), (0.25, 2)]


@pytest.mark.parametrize("num_changes", range(12))
def test_a_batch_that_is_made_again_says_the_same_of_what_was_settled(num_changes: int) -> None:
    """G5: the process dies anywhere in a call that closes two batches, and then again."""
    expected, host = Host(batch_groups=1), Host(batch_groups=1)
    head, tail = [*pair("alike", 1.0, 1.0), *pair("too", 0.5, 0.5)], [*pair("a"), *pair("b", 0.0, 0.25)]
    for each in (expected, host):
        each.feed(*head)
    expected.feed(*tail, *pair("more", 0.5, 0.5), *pair("c"))
    records = host.append(*tail)
    host.handle(records, num_changes=num_changes)
    host.handle(records, num_changes=num_changes + 3)
    host.handle(records)
    host.restart()
    host.feed(*pair("more", 0.5, 0.5), *pair("c"))
    assert settled(expected) == [(4.0, 6), (0.25, 2), (2.0, 4)]
    assert {shard.batch_id: shard for shard in host.shards} == {
        each.batch_id: each for each in expected.shards
    }
    assert len({shard.model_dump_json() for shard in host.shards}) == 3
    assert dict(host.state.scan(b"")) == dict(expected.state.scan(b""))


def test_a_state_that_says_nothing_of_what_was_settled_begins_with_the_groups_that_wait() -> None:
    """It is of an earlier version of the batcher."""
    host = Host(batch_groups=2)
    host.feed(*pair("a", 0.0, 0.5))
    for key, _ in list(host.state.scan(b"s")):
        host.state.delete(key)
    host.restart()
    host.feed(*pair("b"))
    assert settled(host) == [(1.5, 4)]


def test_outcomes_too_large_to_add_up_are_left_out() -> None:
    host = Host(batch_groups=1)
    huge = 1.7e308
    host.feed(*pair("huge", huge, huge), *pair("a"))
    assert settled(host) == [(1.0, 2)]


@pytest.mark.parametrize(("version", "reason"), [(2, "stale"), (3, None)])
def test_staleness_counts_from_the_oldest_call_to_the_newest_version_in_the_log(
    version: int, reason: str | None
) -> None:
    """C15: whichever trajectory has shown it, and however the other calls of the group were."""
    host = Host(batch_groups=1, max_staleness=4)
    seen = trajectory("other", 0, transitions=(transition(resource_version=7),), mode="val", accepted=False)
    mixed = (transition(0, resource_version=7), transition(1, resource_version=version))
    host.feed(seen, *pair("g", transitions=mixed))
    assert host.verdicts["g"].reason == reason
    assert host.verdicts["g"].staleness == 7 - version


def test_versions_of_different_resources_are_not_compared() -> None:
    host = Host(batch_groups=1, max_staleness=0)
    calls = (transition(0, resource_name="planner", resource_version=40), transition(1, resource_version=3))
    host.feed(*pair("g", transitions=calls))
    assert (host.verdicts["g"].reason, host.verdicts["g"].staleness) == (None, 0)


def test_the_token_budget_closes_a_batch_before_it_is_exceeded() -> None:
    host = Host(batch_groups=9, batch_tokens=25)
    host.feed(*pair("a"), *pair("b"), *pair("c"))
    assert host.batches == [["a", "b"]]
    assert host.shards[0].last_offset == 3
    host.feed(*pair("d"), batch_wait("c"))
    assert host.batches == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("options", "reason"), [({}, None), ({"on_deadline": "drop"}, "group_deadline")], ids=["train", "drop"]
)
def test_a_straggler_ends_with_its_group_s_deadline(options: dict[str, Any], reason: str | None) -> None:
    """C14: the clock only writes a mark, and the log decides."""
    host = Host(batch_groups=1, group_deadline_s=10.0, **options)
    host.feed(*pair("g", group_size=3))
    assert host.batcher.tick(EPOCH_MS + 9_999) == []
    (mark,) = host.batcher.tick(EPOCH_MS + 10_000)
    assert host.batcher.tick(EPOCH_MS + 10_500) == []
    assert len(host.batcher.tick(EPOCH_MS + 40_000)) == 1  # should the first not come back
    assert host.verdicts == {}
    assert (mark.topic, mark.partition) == (TRAJECTORIES, 0)
    assert CODEC.decode(mark.value, Trajectory).kind == "closed"
    host.feed(CODEC.decode(mark.value, Trajectory), time_ms=EPOCH_MS + 10_100)
    assert host.reasons() == {"g": reason}
    assert host.verdicts["g"].num_rollouts == 2
    host.feed(trajectory("g", 2, group_size=3))
    assert host.batcher.counts["late"] == 1
    assert len(host.shards) == (reason is None)


def test_a_batch_that_does_not_fill_is_closed_when_its_first_group_has_waited() -> None:
    host = Host(batch_groups=9, batch_wait_s=10.0)
    host.feed(*pair("a"), time_ms=EPOCH_MS)
    host.feed(*pair("b"), time_ms=EPOCH_MS + 5_000)
    assert host.batcher.tick(EPOCH_MS + 9_999) == []
    (mark,) = host.batcher.tick(EPOCH_MS + 10_000)
    decoded = CODEC.decode(mark.value, Trajectory)
    assert (decoded.group_id, decoded.reason) == ("a", BATCH_WAIT)
    host.feed(decoded, decoded, time_ms=EPOCH_MS + 10_050)
    assert host.batches == [["a", "b"]]
    assert host.shards[0].time.timestamp() * 1000 == EPOCH_MS + 10_050
    assert host.batcher.tick(EPOCH_MS + 99_000) == []


def test_marks_for_what_is_not_there_change_nothing() -> None:
    """A deadline's mark that comes twice must not close the batch that its group has joined."""
    host = Host(batch_groups=9)
    host.feed(deadline("x"), batch_wait("x"), *pair("g", group_size=3), batch_wait("g"))
    assert (host.verdicts, host.shards) == ({}, [])
    host.feed(deadline("g"), deadline("g"))
    assert (host.verdicts, host.shards) == ({}, [])
    host.feed(batch_wait("g"), deadline("g"), batch_wait("g"))
    assert host.batches == [["g"]]


def test_a_group_that_nobody_finished_ends_at_its_deadline() -> None:
    host = Host()
    host.feed(trajectory("g", 0, accepted=False, is_final=False), deadline("g"))
    assert host.reasons() == {"g": "too_few_accepted"}
    assert host.verdicts["g"].num_rollouts == 0


def test_finished_groups_are_forgotten_but_for_a_mark() -> None:
    """C5."""
    host = Host(finished_retention_s=100.0)
    host.feed(*pair("a"), *pair("b"), *pair("c", 1.0, 1.0))
    assert host.batcher.num_open == 0
    assert sorted({key[:1] for key, _ in host.state.scan(b"")}) == [b"c", b"e", b"f", b"s"]
    host.feed(trajectory("z"), time_ms=EPOCH_MS + 10 * 60_000)
    assert [key[:1] for key, _ in host.state.scan(b"")] == [b"c", b"g", b"m", b"s"]


def test_an_id_that_begins_another_is_another_group() -> None:
    host = Host(batch_groups=1)
    host.feed(trajectory("g", 0), trajectory("gg", 0), trajectory("gg", 1, 0.0))
    assert set(host.verdicts) == {"gg"}


def test_bad_records_become_dead_letters_and_the_rest_goes_on() -> None:
    """G8, C9."""
    host = Host(batch_groups=1)
    good = host.append(*pair("g"))
    bad = [good[0]._replace(offset=2, value=b"\x01bad"), good[0]._replace(offset=3, key=b"other")]
    host.handle([good[0], bad[0], bad[1], good[1]._replace(offset=4)])
    assert [letter.reason for letter in host.dead_letters] == ["bad_record", "key_mismatch"]
    assert set(host.verdicts) == {"g"}


@pytest.mark.parametrize("time_ms", [-1, 2**62])
def test_an_impossible_time_of_a_producer_does_not_stop_it(time_ms: int) -> None:
    host = Host(batch_groups=1)
    host.feed(*pair("g"), time_ms=time_ms)
    assert host.reasons() == {"g": None}


def test_outcomes_beyond_all_measure_have_no_mean() -> None:
    host = Host(batch_groups=1)
    host.feed(*pair("g", 1.7e308, -1.7e308, 1.7e308))
    assert (host.verdicts["g"].reason, host.verdicts["g"].outcome_std) == (None, None)


def test_shards_stand_in_one_partition_and_verdicts_under_their_groups() -> None:
    host = Host(batch_groups=1)
    host.feed(*pair("g"))
    places = {output.topic: (output.partition, output.key) for output in host.outputs}
    assert places[topic_name(BatchShard, PREFIX)][0] == 0
    assert places[topic_name(GroupVerdict, PREFIX)] == (None, b"g")
    assert DEADLINE != BATCH_WAIT
