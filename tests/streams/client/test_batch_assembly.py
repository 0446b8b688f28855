"""Shards become batches, each once, whatever the log repeats and wherever reading begins again (G5)."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import TIME
from tests.streams.processors.batcher.scene import pair

from headrace.schemas.digest import content_digest
from headrace.schemas.records import BatchShard
from headrace.streams.client.batch import BadBatchError, Batch
from headrace.streams.client.batch_assembly import BatchAssembly

BATCHES, TRAJECTORIES = "p.batches.v1", "p.trajectories.v1"


def shards_of(*names: str, last_offset: int, source: int = 0, each: int = 1) -> list[BatchShard]:
    """A batch of these groups, with so many trajectories in a shard."""
    trajectories = sorted(
        (one for name in names for one in pair(name)), key=lambda one: (one.group_id, one.rollout_id)
    )
    parts = [tuple(trajectories[at : at + each]) for at in range(0, len(trajectories), each)]
    digest = content_digest(trajectories)
    return [
        BatchShard(
            batch_id=digest[:32],
            shard=number,
            num_shards=len(parts),
            manifest_hash=digest,
            policy_version_min=3,
            policy_version_max=5,
            source_partition=source,
            last_offset=last_offset,
            settled_outcome_sum=2.5,
            settled_num_outcomes=7,
            trajectories=part,
            time=TIME,
        )
        for number, part in enumerate(parts)
    ]


def assembly(start: int = 0) -> BatchAssembly:
    made = BatchAssembly(BATCHES, TRAJECTORIES)
    made.reset({0: start}, {})
    return made


def given_by(made: BatchAssembly, log: Sequence[BatchShard], start: int = 0) -> list[Batch]:
    taken = (made.take(0, offset, each) for offset, each in enumerate(log[start:], start))
    return [batch for batch in taken if batch is not None]


def groups_of(batches: Sequence[Batch]) -> list[list[str]]:
    return [[group.group_id for group in batch.groups] for batch in batches]


def test_a_batch_is_its_groups_with_their_trajectories() -> None:
    made = assembly()
    (batch,) = given_by(made, shards_of("a", "b", last_offset=9))
    assert groups_of([batch]) == [["a", "b"]]
    assert [len(group.trajectories) for group in batch.groups] == [2, 2]
    assert [group.task_id for group in batch.groups] == ["task of a", "task of b"]
    assert (batch.policy_version_min, batch.policy_version_max, batch.time) == (3, 5, TIME)
    assert (batch.settled_outcome_sum, batch.settled_num_outcomes) == (2.5, 7)
    assert (len(batch.trajectories), batch.num_tokens) == (4, 20)
    assert batch.offsets == {f"{BATCHES}:0": 4, f"{TRAJECTORIES}:0": 10} == made.offsets


def test_a_repeat_is_recognized_over_a_restart_at_any_distance() -> None:
    first, second, third = (shards_of(name, last_offset=at) for name, at in (("a", 3), ("b", 5), ("c", 8)))
    log = [*first, *second, *first, *second, *third]
    batches = given_by(assembly(), log)
    assert groups_of(batches) == [["a"], ["b"], ["c"]]
    again = assembly()
    again.reset(*again.parse(batches[1].offsets))
    assert groups_of(given_by(again, log, start=4)) == [["c"]]
    assert again.num_repeats == 4


def test_what_a_dead_batcher_left_unfinished_is_finished_by_the_next() -> None:
    first = shards_of("a", "b", last_offset=3)
    batches = given_by(assembly(), [first[0], first[1], *first, *shards_of("c", last_offset=4)])
    assert groups_of(batches) == [["a", "b"], ["c"]]


def test_or_its_groups_come_again_in_other_batches() -> None:
    """The batcher came back with other settings."""
    cut = shards_of("a", "b", "c", last_offset=9)[:3]
    log = [*cut, *shards_of("a", last_offset=3), *shards_of("b", "c", last_offset=9)]
    assert groups_of(given_by(assembly(), log)) == [["a"], ["b", "c"]]


def test_a_batch_without_all_its_shards_is_an_error_and_what_follows_is_not_lost() -> None:
    lost = shards_of("a", "b", last_offset=3)
    made, log = assembly(), [*lost[:2], lost[3], *shards_of("c", last_offset=4)]
    given_by(made, log[:-1])
    with pytest.raises(BadBatchError, match=r"lacks the shards \[2\] of 4"):
        made.take(0, 4, log[4])
    batch = made.take(0, 4, log[4])
    assert batch is not None
    assert groups_of([batch]) == [["c"]]


def test_a_batch_whose_beginning_retention_took_is_left_out() -> None:
    log = [*shards_of("a", "b", last_offset=3)[2:], *shards_of("c", last_offset=4)]
    assert groups_of(given_by(assembly(), log)) == [["c"]]


def test_a_batch_that_is_not_what_was_hashed_is_an_error() -> None:
    shards = shards_of("a", last_offset=3)
    swapped = shards[1].model_copy(update={"trajectories": tuple(pair("a", 0.0, 0.5)[1:])})
    made = assembly()
    made.take(0, 0, shards[0])
    with pytest.raises(BadBatchError, match=r"2 trajectories have the hash"):
        made.take(0, 1, swapped)
    assert made.take(0, 1, swapped) is None
    assert groups_of(given_by(made, [*shards, *shards_of("b", last_offset=4)], start=2)) == [["b"]]


def test_records_that_are_gone_are_noticed() -> None:
    made = assembly()
    one = shards_of("a", last_offset=3, each=2)[0]
    with pytest.raises(BadBatchError, match=r"p.batches.v1:0 has lost the records from 0 to 6"):
        made.take(0, 7, one)
    assert made.take(0, 7, one) is not None


@pytest.mark.parametrize("place", ["q.batches.v1:0", "p.batches.v1", "p.batches.v1:x"])
def test_offsets_of_other_topics_are_refused(place: str) -> None:
    with pytest.raises(BadBatchError, match="are not those of"):
        assembly().parse({place: 1})


def some_log(rng: random.Random) -> tuple[list[BatchShard], list[list[str]]]:
    """Batches of two sources with repeats of every kind, and the groups of each source in order."""
    queues: list[list[BatchShard]] = []
    for source in range(2):
        batches = [
            shards_of(f"s{source}b{number}", last_offset=number * 2, source=source)
            for number in range(rng.randint(0, 5))
        ]
        queue: list[BatchShard] = []
        done = 0
        while done < len(batches):
            # A life of the batcher: it begins where its state says, and dies at any shard.
            done = max(0, done - rng.randint(0, 2))
            life = [one for batch in batches[done:] for one in batch]
            life = life[: rng.randint(1, len(life))]
            queue += life
            done += len(life) // 2
        queues.append(queue)
    expected = [sorted({one.trajectories[0].group_id for one in queue}) for queue in queues]
    log = []
    while any(queues):
        queue = rng.choice([each for each in queues if each])
        log.append(queue.pop(0))
    return log, expected


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_batch_once_in_order_from_any_checkpoint(seed: int) -> None:
    rng = random.Random(seed)
    log, expected = some_log(rng)
    trained: list[Any] = []
    offsets: dict[str, int] = {}
    while True:
        made = BatchAssembly(BATCHES, TRAJECTORIES)
        positions, done = made.parse(offsets)
        at = positions.get(0, 0)
        made.reset({0: at}, done)
        # A life of the trainer: some batches, then it is killed and only its last checkpoint is left.
        batches = given_by(made, log, at)[: rng.randint(0, 4)]
        kept = batches[: rng.randint(0, len(batches))]
        trained += kept
        offsets = kept[-1].offsets if kept else offsets
        if not batches and not given_by_all(log, offsets):
            break
    for source in range(2):
        found = [group.group_id for batch in trained for group in batch.groups]
        assert [name for name in found if name.startswith(f"s{source}")] == expected[source]


def given_by_all(log: Sequence[BatchShard], offsets: dict[str, int]) -> list[Batch]:
    made = BatchAssembly(BATCHES, TRAJECTORIES)
    positions, done = made.parse(offsets)
    made.reset({0: positions.get(0, 0)}, done)
    return given_by(made, log, positions.get(0, 0))
