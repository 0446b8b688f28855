"""Topics made true from their files on a real broker, and lag as a consumer group's commits have it."""

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from tests.builders import Attempt
from tests.pipeline import wait_until

from headrace.cli.stack import ports
from headrace.cli.stack.kafka import KafkaBroker
from headrace.schemas.errors import FatalError
from headrace.schemas.records import Reward
from headrace.schemas.topics import topic_name, topic_specs
from headrace.streams.client import admin as admin_module
from headrace.streams.client.admin import (
    admin_client,
    apply_topics,
    describe_topics,
    end_offsets,
    group_lag,
    group_offsets,
)
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings

NAMES = set(topic_specs())


@pytest.fixture
def settings(kafka: KafkaBroker, topic_prefix: str) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)


@pytest.mark.integration
def test_topics_are_created_as_declared_and_a_second_time_nothing_changes(settings: KafkaSettings) -> None:
    assert {status.exists for status in describe_topics(settings)} == {False}
    assert [applied.action for applied in apply_topics(settings)] == ["created"] * len(NAMES)
    statuses = describe_topics(settings)
    assert {status.spec.name for status in statuses} == NAMES
    for status in statuses:
        assert status.exists
        assert status.differences == {}
        assert status.partitions == status.spec.partitions
        for key, value in status.spec.config.items():
            assert status.config[key] == str(value)
    for _ in range(2):
        assert {applied.action for applied in apply_topics(settings)} == {"unchanged"}


@pytest.mark.integration
def test_settings_that_differ_are_set_and_those_of_others_are_left(settings: KafkaSettings) -> None:
    def differing() -> dict[str, dict[str, tuple[str, str]]]:
        return {each.name: each.differences for each in describe_topics(settings) if each.differences}

    apply_topics(settings)
    name = topic_name(Reward, settings.topic_prefix)
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in {"retention.ms": "1000", "segment.bytes": "1048576"}.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    admin = admin_client(settings)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    wait_until(lambda: differing() == {name: {"retention.ms": ("604800000", "1000")}}, what="the change")
    (applied,) = (applied for applied in apply_topics(settings) if applied.action != "unchanged")
    assert applied == (name, "updated", "retention.ms: 1000 → 604800000")
    wait_until(lambda: differing() == {}, what="the change back")
    (status,) = (status for status in describe_topics(settings) if status.name == name)
    assert status.config["segment.bytes"] == "1048576"


@pytest.mark.integration
def test_another_number_of_partitions_is_refused_and_nothing_is_changed(settings: KafkaSettings) -> None:
    apply_topics(settings)
    name = topic_name(Reward, settings.topic_prefix)
    admin = admin_client(settings)
    for future in admin.create_partitions([NewPartitions(name, 7)]).values():
        future.result()
    wait_until(lambda: len(group_lag(settings, "group", [name])) == 7, what="seven partitions")
    before = describe_topics(settings)
    with pytest.raises(FatalError, match=rf"{name} has 7 partitions, 4 are wanted"):
        apply_topics(settings)
    assert describe_topics(settings) == before


@pytest.mark.integration
def test_partitions_may_be_set_for_the_topics_that_share_their_number(settings: KafkaSettings) -> None:
    wider = settings.model_copy(update={"partitions": 6})
    apply_topics(wider)
    numbers = {status.spec.name: status.partitions for status in describe_topics(wider)}
    assert {numbers[name] for name in ("rollouts", "attempts", "spans", "rewards")} == {6}
    assert numbers["dead-letters"] == topic_specs()["dead-letters"].partitions
    assert {applied.action for applied in apply_topics(wider)} == {"unchanged"}
    with pytest.raises(FatalError, match="HEADRACE_KAFKA_PARTITIONS"):
        apply_topics(settings)


@pytest.mark.integration
def test_lag_is_what_is_not_committed(settings: KafkaSettings) -> None:
    apply_topics(settings)
    topic, group = topic_name(Reward, settings.topic_prefix), f"{settings.topic_prefix}-group"
    assert set(group_lag(settings, group, [topic]).values()) == {0}
    with Publisher(settings) as publisher:
        for number in range(100):
            publisher.publish(Attempt(f"{number}").reward())
    ends = end_offsets(settings, [topic])
    assert sum(ends.values()) == 100
    assert group_lag(settings, group, [topic, "not there"]) == ends
    consumer = Consumer({"group.id": group} | settings.librdkafka())
    consumer.commit(offsets=[TopicPartition(topic, 1, ends[topic, 1] - 3)], asynchronous=False)
    consumer.close()
    assert group_offsets(settings, group, [topic]) == {(topic, 1): ends[topic, 1] - 3}
    lag = group_lag(settings, group, [topic])
    assert lag[topic, 1] == 3
    assert lag[topic, 0] == ends[topic, 0]


def test_no_broker_is_said_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "TIMEOUT_S", 0.3)
    nowhere = KafkaSettings(bootstrap_servers=f"127.0.0.1:{ports.pick()}")
    for ask in (
        apply_topics,
        describe_topics,
        lambda s: group_lag(s, "g", ["t"]),
        lambda s: end_offsets(s, ["t"]),
    ):
        with pytest.raises(KafkaUnavailableError, match=nowhere.bootstrap_servers):
            ask(nowhere)
