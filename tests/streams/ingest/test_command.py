"""The command as people use it, by itself and against a real broker."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.streams.ingest.lines import line, user

from headrace.cli.ingest_commands import DEMO_FILES, ingest
from headrace.cli.stack.kafka import KafkaBroker
from headrace.schemas.codec import Codec
from headrace.schemas.records import AttemptEvent, DeadLetter, Record, Reward, Span
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics
from headrace.streams.ingest.bad_input import BadInputError
from headrace.streams.ingest.source import Source
from headrace.streams.settings import KafkaSettings


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(ingest, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def counts(result: Result) -> dict[str, int]:
    rows = (row.split("│") for row in result.stdout.splitlines() if row.startswith("│"))
    return {name.strip(): int(count) for _, name, count, _ in rows}


def test_dry_run_counts_and_needs_no_broker() -> None:
    result = run(*DEMO_FILES, "--dry-run")
    assert result.exit_code == 0, result.output
    found = counts(result)
    assert (found["attempts"], found["spans"], found["rewards"], found["bad lines"]) == (15, 29, 12, 0)


def test_bad_lines_are_shown_counted_and_in_the_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line([user("hi")]) + "\nnonsense\n")
    result = run(path, "--dry-run")
    assert result.exit_code == 1
    assert counts(result)["bad lines"] == 1
    assert f"{path}:2: not_json" in result.stderr
    assert run(path, "--dry-run", "--allow-bad").exit_code == 0


def test_many_bad_lines_do_not_flood_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(line([user("hi")]) + "\nnonsense" * 500)
    result = run(path, "--dry-run")
    assert counts(result)["bad lines"] == 500
    assert len(result.stderr.splitlines()) < 30


@pytest.mark.parametrize(("group", "attempts"), [("conversation", 1), ("line", 2)])
def test_grouping_is_an_option(tmp_path: Path, group: str, attempts: int) -> None:
    path = tmp_path / "chats.jsonl"
    turns = [user("a"), {"role": "assistant", "content": "yes"}, user("b")]
    path.write_text(line(turns[:1]) + "\n" + line(turns))
    assert counts(run(path, "--dry-run", "--group", group))["attempts"] == attempts


def test_a_file_that_is_missing_is_a_usage_error() -> None:
    assert run("nowhere.jsonl").exit_code == 2


@pytest.mark.integration
def test_records_and_dead_letters_arrive_in_kafka_as_they_were_read(
    tmp_path: Path, kafka: KafkaBroker, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP_SERVERS", kafka.endpoint)
    monkeypatch.setenv("HEADRACE_KAFKA_TOPIC_PREFIX", topic_prefix)
    settings = KafkaSettings()
    apply_topics(settings)
    path = tmp_path / "chats.jsonl"
    path.write_text(line([user("hi")], reward=0.5) + "\nnonsense\n")
    assert run(path).exit_code == 1
    assert run(*DEMO_FILES).exit_code == 0
    items = [*Source([path]), *Source(DEMO_FILES)]
    expected = [item.dead_letter() if isinstance(item, BadInputError) else item for item in items]
    for record in (AttemptEvent, Span, Reward, DeadLetter):
        wanted = [item for item in expected if isinstance(item, record)]
        found = consume(settings, record, len(wanted))
        assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def consume(settings: KafkaSettings, record: type[Record], count: int) -> list[Record]:
    """All records of a topic; that there are no more than `count` shows at its end."""
    codec = Codec()
    consumer = Consumer(
        settings.librdkafka()
        | {
            "group.id": "test",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    name = topic_name(record, settings.topic_prefix)
    num_partitions = len(consumer.list_topics(name, timeout=30).topics[name].partitions)
    consumer.assign([TopicPartition(name, number, 0) for number in range(num_partitions)])
    found: list[Record] = []
    at_end: set[int] = set()
    try:
        while len(at_end) < num_partitions:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} of {count} came"
            error = message.error()
            if error is None:
                found.append(codec.decode(message.value(), record))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise AssertionError(error.str())
    finally:
        consumer.close()
    assert len(found) == count
    return found
