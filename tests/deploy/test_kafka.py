import socket
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.service import ServiceError

pytestmark = pytest.mark.integration


def publish(broker: KafkaBroker, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.endpoint, "acks": "all", "log_level": 0})
    producer.produce("t", value)
    assert producer.flush(30) == 0


def read(broker: KafkaBroker, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": broker.endpoint, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition("t", 0, 0)])
    values = [message.value() for message in consumer.consume(count, timeout=30)]
    consumer.close()
    return values


def test_data_survives_stop_and_kill(kafka_factory: Callable[[], KafkaBroker]) -> None:
    broker = kafka_factory().start()
    admin = AdminClient({"bootstrap.servers": broker.endpoint, "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    endpoint = broker.endpoint
    publish(broker, b"1")
    broker.stop()
    assert not broker.running
    broker.start()
    publish(broker, b"2")
    broker.kill()
    broker.start()
    assert broker.endpoint == endpoint
    assert read(broker, 2) == [b"1", b"2"]


def test_topics_are_not_created_by_mistake(kafka: KafkaBroker, topic_prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.endpoint, "allow.auto.create.topics": True})
    assert admin.list_topics(topic_prefix, timeout=10).topics[topic_prefix].error is not None
    assert topic_prefix not in admin.list_topics(timeout=10).topics


def test_c18_the_brokers_own_error_is_shown(kafka_factory: Callable[[], KafkaBroker]) -> None:
    broker = kafka_factory()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", broker.controller_port))
        thief.listen()
        with pytest.raises(ServiceError, match="Address already in use") as caught:
            broker.start()
    assert f"waiting for Kafka at {broker.endpoint}" in str(caught.value)


def test_the_console_stays_quiet(
    kafka_factory: Callable[[], KafkaBroker], capfd: pytest.CaptureFixture[str]
) -> None:
    with kafka_factory() as broker:
        assert "Kafka Server started" in broker.log_path.read_text()
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
