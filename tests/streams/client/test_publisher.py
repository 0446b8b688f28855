"""The publisher on a real broker and on none: acknowledged or an error, bounded, keyed as by others (G8)."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pydantic import ValidationError
from tests.builders import CODEC, Attempt, an_id

from headrace.cli.stack import ports
from headrace.cli.stack.kafka import KafkaBroker
from headrace.schemas.errors import BadRecordError, FatalError, RetryableError
from headrace.schemas.records import DeadLetter, Reward, Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics, end_offsets
from headrace.streams.client.errors import DeliveryError, PublisherFullError, RecordTooLargeError
from headrace.streams.client.publisher import MAX_MESSAGE_BYTES, MAX_RECORD_BYTES, Publisher, _translate
from headrace.streams.settings import KafkaSettings


@pytest.fixture
def settings(kafka: KafkaBroker, topic_prefix: str) -> KafkaSettings:
    found = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(found)
    return found


@pytest.fixture
def nowhere() -> KafkaSettings:
    """No broker answers there."""
    return KafkaSettings(bootstrap_servers=f"127.0.0.1:{ports.pick()}")


@pytest.fixture
def reader(settings: KafkaSettings) -> Iterator[Consumer]:
    made = Consumer({"group.id": "reader", "enable.auto.commit": False} | settings.librdkafka())
    yield made
    made.close()


def num_in(settings: KafkaSettings, topic: str) -> int:
    return sum(end_offsets(settings, [topic]).values())


def fausts_partition_of(key: bytes) -> int:
    partition: int = DefaultPartitioner()(key, [0, 1, 2, 3], [0, 1, 2, 3])
    return partition


def read_one(reader: Consumer, topic: str, partition: int = 0) -> Message:
    reader.assign([TopicPartition(topic, partition, 0)])
    message = reader.poll(30)
    assert message is not None
    assert message.error() is None
    return message


@pytest.mark.integration
def test_flush_means_acknowledged(settings: KafkaSettings) -> None:
    topic = topic_name(Span, settings.topic_prefix)
    with Publisher(settings) as publisher:
        for batch in range(3):
            for number in range(500):
                publisher.publish(Attempt(f"{number}").call(batch + 1))
            publisher.flush()
            assert publisher.pending() == 0
            assert num_in(settings, topic) == 500 * (batch + 1)


@pytest.mark.integration
def test_leaving_the_context_flushes(settings: KafkaSettings) -> None:
    with Publisher(settings, linger_ms=5000) as publisher:
        publisher.publish(Attempt().reward())
    assert num_in(settings, topic_name(Reward, settings.topic_prefix)) == 1


@pytest.mark.integration
def test_a_record_arrives_as_it_was_with_key_and_headers(settings: KafkaSettings, reader: Consumer) -> None:
    a = Attempt()
    letter = DeadLetter(consumer="c", topic="t", partition=0, offset=7, key_bytes=b"\xff", reason="r")
    with Publisher(settings) as publisher:
        publisher.publish(letter, headers={"traceparent": b"00-1-2-03"})
        publisher.publish(a.call(1))
    message = read_one(reader, topic_name(DeadLetter, settings.topic_prefix))
    assert CODEC.decode(message.value(), DeadLetter) == letter
    assert (message.key(), message.headers()) == (b"\xff", [("traceparent", b"00-1-2-03")])
    topic = topic_name(Span, settings.topic_prefix)
    message = read_one(reader, topic, fausts_partition_of(a.rollout_id.encode()))
    assert (message.key(), message.headers()) == (a.rollout_id.encode(), None)


JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Of UtilsTest.testMurmur2 in Apache Kafka."""


@pytest.mark.integration
def test_a_key_goes_to_the_partition_that_java_and_faust_put_it_in(settings: KafkaSettings) -> None:
    """One rollout, one partition number, whoever writes."""
    found: dict[bytes, int] = {}

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None
        found[message.key() or b""] = message.partition() or 0

    keys = [*JAVA, *(an_id(number).encode() for number in range(200)), b"", b"\xff\x00"]
    topic = topic_name(Span, settings.topic_prefix)
    with Publisher(settings) as publisher:
        for key in keys:
            publisher.publish_bytes(topic, key, b"v", on_delivery=on_delivery)
    assert {found[key] for key in keys} == {0, 1, 2, 3}
    for key, murmur2 in JAVA.items():
        assert found[key] == (murmur2 & 0x7FFFFFFF) % 4
    for key in keys:
        assert found[key] == fausts_partition_of(key)


def flush(publisher: Publisher) -> None:
    publisher.flush()


def close(publisher: Publisher) -> None:
    with publisher:
        pass


def publish_more(publisher: Publisher) -> None:
    while True:
        publisher.serve(0.05)
        publisher.publish_bytes("other", b"k", b"v", on_delivery=lambda *_: None)


@pytest.mark.integration
@pytest.mark.parametrize("surface", [flush, close, publish_more])
def test_a_topic_that_is_not_there_is_a_delivery_error(
    kafka: KafkaBroker, topic_prefix: str, surface: Callable[[Publisher], None]
) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    publisher = Publisher(settings, properties={"topic.metadata.propagation.max.ms": 0})
    publisher.publish(Attempt().reward())
    with pytest.raises(DeliveryError, match="1 records were not acknowledged") as caught:
        surface(publisher)
    assert isinstance(caught.value, RetryableError)
    ((topic, key, _),) = caught.value.failures
    assert (topic, key) == (topic_name(Reward, topic_prefix), Attempt().rollout_id.encode())


def test_an_absent_broker_is_a_delivery_error_with_how_many_and_why(nowhere: KafkaSettings) -> None:
    publisher = Publisher(nowhere, delivery_timeout_s=0.3)
    for number in range(150):
        publisher.publish(Attempt(f"{number}").reward())
    with pytest.raises(DeliveryError, match=r"150 records were not .* on headrace\.rewards\.v1") as caught:
        publisher.flush()
    assert (caught.value.count, len(caught.value.failures)) == (150, 100)
    publisher.flush()  # said once


def test_a_flush_that_ends_too_early_says_so(nowhere: KafkaSettings) -> None:
    publisher = Publisher(nowhere, delivery_timeout_s=1.0)
    publisher.publish(Attempt().reward())
    with pytest.raises(DeliveryError, match=r"no acknowledgement within 0\.1 s"):
        publisher.flush(0.1)
    with pytest.raises(DeliveryError):
        publisher.flush()


def test_who_takes_a_failure_upon_himself_hears_of_it_alone(nowhere: KafkaSettings) -> None:
    errors: list[KafkaError | None] = []
    publisher = Publisher(nowhere, delivery_timeout_s=0.3)
    publisher.publish(Attempt().reward(), on_delivery=lambda error, _: errors.append(error))
    publisher.flush()
    assert len(errors) == 1
    assert errors[0] is not None


@pytest.mark.parametrize(
    "bounds", [{"max_pending": 10}, {"max_pending_bytes": 100_000}], ids=["records", "bytes"]
)
def test_a_full_buffer_pushes_back_and_then_refuses(nowhere: KafkaSettings, bounds: dict[str, Any]) -> None:
    """G8: bounded, and nothing is dropped for it."""
    publisher = Publisher(nowhere, publish_timeout_s=0.3, delivery_timeout_s=2.0, **bounds)
    attempt = Attempt()
    taken: list[int] = []

    def fill() -> None:
        for number in range(1, 1000):
            publisher.publish(attempt.span(number, attributes={"text": "x" * 2000}))
            taken.append(number)

    began = time.monotonic()
    with pytest.raises(PublisherFullError, match=r"records wait for Kafka at 127\.0\.0\.1:"):
        fill()
    assert time.monotonic() - began > 0.3
    assert publisher.pending() == len(taken) > 5
    assert not publisher.has_room()
    with pytest.raises(DeliveryError) as caught:
        publisher.flush()
    assert caught.value.count == len(taken)


@pytest.mark.parametrize(
    "bounds", [{"max_pending": 10}, {"max_pending_bytes": 100_000}], ids=["records", "bytes"]
)
@pytest.mark.parametrize("takes_it_upon_himself", [True, False], ids=["who hears", "who does not"])
def test_there_is_room_again_when_records_have_come_to_their_end(
    nowhere: KafkaSettings,
    bounds: dict[str, Any],
    takes_it_upon_himself: bool,  # noqa: FBT001
) -> None:
    publisher = Publisher(nowhere, delivery_timeout_s=0.3, **bounds)
    on_delivery: Any = (lambda *_: None) if takes_it_upon_himself else None
    # The client counts what it has to tell as well, such as that no broker answers.
    num = 0
    while publisher.has_room() and num < 20:
        publisher.publish_bytes("t", b"k", b"x" * 10_000, on_delivery=on_delivery)
        num += 1
    assert 5 < num < 10
    try:
        publisher.flush()
    except DeliveryError:
        assert not takes_it_upon_himself
    assert publisher.has_room()


def test_who_can_not_wait_is_refused_at_once(nowhere: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Publisher(nowhere, publish_timeout_s=0, max_pending_bytes=100_000, delivery_timeout_s=0.3)
    waits: list[float] = []
    inner = publisher._producer

    class Watched:
        """The client's own can't be changed."""

        def poll(self, timeout_s: float) -> None:
            waits.append(timeout_s)
            inner.poll(timeout_s)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def __len__(self) -> int:
            return len(inner)

    def fill() -> None:
        for _ in range(1000):
            publisher.publish_bytes("t", b"k", b"x" * 2000, on_delivery=lambda *_: None)

    monkeypatch.setattr(publisher, "_producer", Watched())
    with pytest.raises(PublisherFullError):
        fill()
    assert set(waits) == {0}
    # What was refused does not count.
    monkeypatch.undo()
    publisher.flush()
    assert publisher.has_room()


@pytest.mark.integration
def test_a_full_buffer_waits_for_room(settings: KafkaSettings) -> None:
    with Publisher(settings, max_pending=10, linger_ms=20) as publisher:
        for number in range(500):
            publisher.publish(Attempt(f"{number}").reward())
    assert num_in(settings, topic_name(Reward, settings.topic_prefix)) == 500


@pytest.mark.integration
def test_a_record_over_the_limit_is_refused_at_once_and_one_at_the_limit_is_not(
    settings: KafkaSettings,
) -> None:
    attempt = Attempt()
    around = len(CODEC.encode(attempt.span(1, status_message="x" * 5_000_000), "any")) - 5_000_000
    with Publisher(settings) as publisher:
        publisher.publish(attempt.span(1, status_message="x" * (MAX_RECORD_BYTES - around)))
        with pytest.raises(RecordTooLargeError, match="the limit is 8388608") as caught:
            publisher.publish(attempt.span(2, status_message="x" * (MAX_RECORD_BYTES - around + 1)))
        with pytest.raises(RecordTooLargeError, match="no topic takes more"):
            publisher.publish_bytes(topic_name(Span, settings.topic_prefix), b"k", bytes(MAX_MESSAGE_BYTES))
    assert isinstance(caught.value, BadRecordError)
    assert num_in(settings, topic_name(Span, settings.topic_prefix)) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_refused_where_it_is_made(value: float) -> None:
    """C17."""
    with pytest.raises(ValidationError, match="finite number"):
        Attempt().reward(value)


def test_a_producer_that_can_not_go_on_asks_for_a_new_one_and_not_for_a_retry() -> None:
    error = KafkaException(KafkaError(KafkaError._FATAL, "fenced"))
    assert isinstance(_translate(error, "t", b""), FatalError)
