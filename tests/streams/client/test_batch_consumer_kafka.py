"""Batches off real Kafka: from checkpoints, for several trainers, and what is said when none comes (C14)."""

from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import TopicPartition
from tests.streams.client.test_batch_assembly import groups_of, shards_of

from headrace.schemas.records import BatchShard
from headrace.schemas.topics import topic_name
from headrace.streams.client import BadBatchError, BatchConsumer, BatchTimeoutError
from headrace.streams.client.admin import admin_client
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

WAIT_S = 20.0


@pytest.fixture
def publisher(rollout_topics: KafkaSettings) -> Iterator[Publisher]:
    with Publisher(rollout_topics, linger_ms=0) as made:
        yield made


def publish(publisher: Publisher, records: Sequence[BatchShard]) -> None:
    for record in records:
        publisher.publish(record)
    publisher.flush()


def batches(*names: str, first: int = 0) -> list[BatchShard]:
    return [one for number, name in enumerate(names, first) for one in shards_of(name, last_offset=number)]


def test_a_trainer_goes_on_from_its_checkpoint_and_others_have_their_own(
    rollout_topics: KafkaSettings, publisher: Publisher
) -> None:
    publish(publisher, batches("a", "b", "c"))
    with BatchConsumer(rollout_topics, timeout_s=WAIT_S) as one, BatchConsumer(rollout_topics) as other:
        first, second = next(one), next(one)
        assert groups_of([first, second]) == [["a"], ["b"]]
        assert groups_of([other.next(WAIT_S) for _ in range(3)]) == [["a"], ["b"], ["c"]]
        one.seek(first.offsets)
        assert groups_of([next(one)]) == [["b"]]
        # The batcher was killed, and made them again; and goes on.
        publish(publisher, batches("b", "c", "d", first=1))
        assert groups_of([next(one), next(one)]) == [["c"], ["d"]]
        assert groups_of([other.next(WAIT_S)]) == [["d"]]
        offsets = one.offsets
    with BatchConsumer(rollout_topics, start=second.offsets) as resumed:
        assert groups_of([resumed.next(WAIT_S), resumed.next(WAIT_S)]) == [["c"], ["d"]]
        assert resumed.poll(0.2) is None
        assert resumed.offsets == offsets


def test_a_new_trainer_may_begin_with_what_comes(rollout_topics: KafkaSettings, publisher: Publisher) -> None:
    publish(publisher, batches("a"))
    with BatchConsumer(rollout_topics, start="latest") as consumer:
        assert consumer.poll(0.0) is None
        publish(publisher, batches("b", first=1))
        assert groups_of([consumer.next(WAIT_S)]) == [["b"]]


def test_a_time_out_says_what_is_waited_for(rollout_topics: KafkaSettings, publisher: Publisher) -> None:
    publish(publisher, batches("a")[:1])
    with BatchConsumer(rollout_topics, timeout_s=1.0) as consumer:
        with pytest.raises(
            BatchTimeoutError, match=r"no batch in 1 s: .*has 1 of 2 shards.*batcher has"
        ) as e:
            next(consumer)
        assert "the batcher has handled all trajectories" in str(e.value)


def test_what_is_no_shard_is_passed_by(rollout_topics: KafkaSettings, publisher: Publisher) -> None:
    """C9."""
    topic = topic_name(BatchShard, rollout_topics.topic_prefix)
    publisher.publish_bytes(topic, b"key", b"no record")
    publisher.publish_bytes(topic, b"key", None)
    publish(publisher, batches("a"))
    with BatchConsumer(rollout_topics) as consumer:
        batch = consumer.next(WAIT_S)
        assert batch.offsets[f"{topic}:0"] == 4


def test_offsets_that_the_log_does_not_have_are_refused(
    rollout_topics: KafkaSettings, publisher: Publisher
) -> None:
    topic = topic_name(BatchShard, rollout_topics.topic_prefix)
    publish(publisher, batches("a", "b", "c"))
    with BatchConsumer(rollout_topics) as consumer:
        first = consumer.next(WAIT_S)
        with pytest.raises(BadBatchError, match=r"from 0 to 6, and 7 is asked for"):
            consumer.seek({f"{topic}:0": 7})
        admin = admin_client(rollout_topics)
        for deleted in admin.delete_records([TopicPartition(topic, 0, 4)]).values():
            deleted.result()
        with pytest.raises(BadBatchError, match=r"from 4 to 6, and 2 is asked for"):
            consumer.seek(first.offsets)
        consumer.seek({place: at for place, at in first.offsets.items() if "trajectories" in place})
        assert groups_of([consumer.next(WAIT_S)]) == [["c"]]
