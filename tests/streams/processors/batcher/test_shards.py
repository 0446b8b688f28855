"""Batches as records that a topic takes, verifiable by their content."""

import pytest
from tests.builders import CODEC, TIME
from tests.streams.processors.batcher.scene import pair, trajectory, transition

from headrace.schemas.digest import content_digest
from headrace.schemas.records import Trajectory
from headrace.streams.client.publisher import MAX_RECORD_BYTES
from headrace.streams.processors.batcher.settled import Settled
from headrace.streams.processors.batcher.shards import Sized, make_shards


def long(rollout: int, num_tokens: int) -> Trajectory:
    tokens = tuple(range(100_000, 100_000 + num_tokens))
    call = transition(
        prompt_suffix_token_ids=(), response_token_ids=tokens, response_logprobs=(-0.5,) * num_tokens
    )
    return trajectory("g", rollout, transitions=(call,))


def test_a_small_batch_is_one_shard() -> None:
    members = [*pair("b"), *pair("a")]
    (shard,) = make_shards(
        [Sized(each, 1) for each in members],
        versions=None,
        source_partition=0,
        last_offset=0,
        settled=Settled(),
        time=TIME,
    )
    assert [t.group_id for t in shard.trajectories] == ["a", "a", "b", "b"]
    assert shard.manifest_hash == content_digest(shard.trajectories)
    assert shard.batch_id == shard.manifest_hash[:32]
    assert (shard.policy_version_min, shard.policy_version_max) == (None, None)


@pytest.mark.parametrize(
    ("sizes", "num_shards"),
    [([250_000] * 4, 2), ([745_000, 10], 2), ([760_000], 1)],
    ids=["several", "one that fills a shard", "larger than a shard of several"],
)
def test_a_large_batch_is_cut_into_records_that_the_topic_takes(sizes: list[int], num_shards: int) -> None:
    members = [long(number, size) for number, size in enumerate(sizes)]
    sized = [Sized(each, len(CODEC.encode(each, "any"))) for each in members]
    assert max(each.num_bytes for each in sized) <= MAX_RECORD_BYTES
    shards = make_shards(
        sized, versions=(1, 2), source_partition=3, last_offset=4, settled=Settled(4, 2.5, 7), time=TIME
    )
    assert [(shard.shard, shard.num_shards) for shard in shards] == [
        (n, num_shards) for n in range(num_shards)
    ]
    assert all(len(CODEC.encode(shard, "any")) <= MAX_RECORD_BYTES + 32 * 1024 for shard in shards)
    assert {(shard.settled_outcome_sum, shard.settled_num_outcomes) for shard in shards} == {(2.5, 7)}
    found = [t for shard in shards for t in shard.trajectories]
    assert content_digest(found) == shards[0].manifest_hash
    assert len(found) == len(members)
