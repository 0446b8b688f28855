"""`headrace topics` and `headrace lag` on a real broker."""

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.builders import Attempt
from tests.deploy.cli.conftest import Cli

from headrace.schemas.topics import topic_specs
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings
from headrace.streams.topology import PIPELINE

pytestmark = pytest.mark.integration


def test_apply_creates_and_then_finds_nothing_to_do(kafka_cli: Cli, topic_prefix: str) -> None:
    assert {row["state"] for row in kafka_cli.json("topics", "list")} == {"missing"}
    applied = kafka_cli.json("topics", "apply")
    assert {row["action"] for row in applied} == {"created"}
    assert sorted(row["name"] for row in applied) == sorted(
        spec.full_name(topic_prefix) for spec in topic_specs().values()
    )
    assert {row["action"] for row in kafka_cli.json("topics", "apply")} == {"unchanged"}
    assert {row["state"] for row in kafka_cli.json("topics", "list")} == {"ok"}
    shown = kafka_cli("topics", "apply").stdout
    assert f"{topic_prefix}.spans.v1" in shown


@pytest.mark.usefixtures("kafka_settings")
def test_a_conflict_is_an_error(kafka_cli: Cli) -> None:
    result = Cli(kafka_cli.env | {"HEADRACE_KAFKA_PARTITIONS": "3"})("topics", "apply", status=1)
    assert "spans.v1 has 4 partitions, 3 are wanted" in result.stderr
    assert "Traceback" not in result.output
    listed = Cli(kafka_cli.env | {"HEADRACE_KAFKA_PARTITIONS": "3"})("topics", "list").stdout
    assert "differs" in listed


def test_a_replication_that_the_broker_can_t_give(kafka_cli: Cli) -> None:
    cli = Cli(kafka_cli.env | {"HEADRACE_KAFKA_REPLICATION_FACTOR": "3"})
    result = cli("topics", "apply", status=1)
    assert "refuses: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("kafka_settings")
@pytest.mark.parametrize("full", [True, False], ids=["full", "short"])
def test_describe_one(kafka_cli: Cli, topic_prefix: str, full: bool) -> None:  # noqa: FBT001
    name = f"{topic_prefix}.spans.v1"
    shown = kafka_cli("topics", "describe", name if full else "spans").stdout
    assert shown.startswith(f"{name}  ok\n")
    assert "Span, keyed by rollout_id, FULL_TRANSITIVE" in shown
    assert "retention.ms" in shown
    assert ".rewards." not in shown


@pytest.mark.usefixtures("kafka_settings")
def test_describe_all_and_none(kafka_cli: Cli) -> None:
    assert len(kafka_cli.json("topics", "describe")) == len(topic_specs())
    assert "there are attempts, batches" in kafka_cli("topics", "describe", "nope", status=1).stderr


def test_lag_counts_what_is_not_committed(kafka_cli: Cli, kafka_settings: KafkaSettings) -> None:
    assert {row["lag"] for row in kafka_cli.json("lag")} == {0}
    attempt = Attempt("lag")
    with Publisher(kafka_settings) as publisher:
        for number in range(1, 6):
            publisher.publish(attempt.span(number))
    spans = f"{kafka_settings.topic_prefix}.spans.v1"
    (row,) = (row for row in kafka_cli.json("lag") if row["lag"] and row["group"].endswith("-sink"))
    assert (row["topic"], row["lag"]) == (spans, 5)

    consumer = Consumer(kafka_settings.librdkafka() | {"group.id": row["group"], "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(spans, row["partition"], 3)], asynchronous=False)
    consumer.close()
    lags = {item["group"]: item["lag"] for item in kafka_cli.json("lag") if item["lag"]}
    assert lags == {row["group"]: 2, f"{kafka_settings.topic_prefix}-assembler": 5}

    shown = kafka_cli("lag").stdout
    assert f"{row['group']} is 2 behind" in shown
    assert "all 4" in shown
    assert {item["group"] for item in kafka_cli.json("lag")} == {
        stage.group(kafka_settings.topic_prefix) for stage in PIPELINE
    }


def test_lag_without_topics(kafka_cli: Cli) -> None:
    assert "no topics yet" in kafka_cli("lag").stdout
    assert kafka_cli("lag", "--json").stdout == ""
