"""`headrace dead-letters` on a real broker; no sink runs, and none is needed."""

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.builders import CODEC, Attempt, an_id
from tests.deploy.cli.conftest import Cli

from headrace.cli.dead_letter_log import DeadLetterLog
from headrace.cli.dead_letter_replay import Replay
from headrace.schemas.records import DeadLetter
from headrace.streams.client.admin import admin_client, end_offsets
from headrace.streams.client.publisher import Publisher
from headrace.streams.processor import LogRecord
from headrace.streams.processors.dead_letters import MAX_ORIGINAL_BYTES, dead_letter
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

KEY = an_id("rollout", "a").encode()
SPAN = CODEC.encode(Attempt("a").call(1, request="the secret prompt"), "spans")
HEADERS = (("traceparent", b"00-ab"), ("twice", b"1"), ("twice", b"\xff"))
TIME_MS = 1_790_000_000_000


class Letters:
    """Puts dead letters on the topic, and reads what a replay publishes."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.spans = f"{settings.topic_prefix}.spans.v1"
        self.topic = f"{settings.topic_prefix}.dead-letters.v1"

    def put(
        self,
        offset: int,
        *,
        consumers: tuple[str, ...] = ("assembler",),
        reason: str = "bad_record",
        value: bytes | None = SPAN,
        key: bytes | None = KEY,
        topic: str = "",
        partition: int = 1,
    ) -> str:
        place = (topic or self.spans, partition, offset)
        record = LogRecord(*place, TIME_MS, key, value, HEADERS)
        with Publisher(self.settings) as publisher:
            for consumer in consumers:
                publisher.publish(dead_letter(consumer, record, reason, f"detail {offset}"))
        return "{}:{}:{}".format(*place)

    def published(self, topic: str = "") -> list[Any]:
        """Every message of a topic."""
        topic = topic or self.spans
        ends = {place: end for place, end in end_offsets(self.settings, [topic]).items() if end}
        properties = {"group.id": "test", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = Consumer(self.settings.librdkafka() | properties)
        consumer.assign([TopicPartition(*place, 0) for place in ends])
        messages = [consumer.poll(30) for _ in range(sum(ends.values()))]
        consumer.close()
        return messages


@pytest.fixture
def letters(kafka_settings: KafkaSettings) -> Letters:
    return Letters(kafka_settings)


def listed(cli: Cli, *arguments: str) -> list[int]:
    return [row["offset"] for row in cli.json("dead-letters", "list", *arguments)]


def test_none(kafka_cli: Cli, letters: Letters) -> None:
    assert letters.topic.startswith(letters.settings.topic_prefix)
    assert kafka_cli("dead-letters", "list").stdout == "0 dead letters\n"
    assert listed(kafka_cli) == []
    assert "nothing to replay" in kafka_cli("dead-letters", "replay", "--all").stdout


def test_without_the_topic(kafka_cli: Cli) -> None:
    assert "headrace topics apply" in kafka_cli("dead-letters", "list", status=1).stderr


def test_a_record_is_listed_once_whoever_met_it(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(7, consumers=("assembler", "sink", "assembler"))
    (row,) = kafka_cli.json("dead-letters", "list")
    assert row["consumers"] == ["assembler", "sink"]
    assert len(row["entries"]) == 2
    assert (row["topic"], row["partition"], row["offset"], row["bytes"]) == (letters.spans, 1, 7, len(SPAN))
    assert "1 dead letter, times in UTC" in kafka_cli("dead-letters", "list").stdout


def test_filters(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(1)
    letters.put(2, reason="key_mismatch")
    letters.put(3, consumers=("sink",))
    letters.put(4, topic="notes.jsonl", consumers=("ingest",))
    assert listed(kafka_cli) == [1, 2, 3, 4]
    assert listed(kafka_cli, "--topic", "spans") == [1, 2, 3]
    assert listed(kafka_cli, "--topic", letters.spans, "--reason", "key_mismatch") == [2]
    assert listed(kafka_cli, "--consumer", "sink") == [3]
    assert listed(kafka_cli, "--since", "1h") == [1, 2, 3, 4]
    assert listed(kafka_cli, "--since", "2100-01-01") == []
    assert listed(kafka_cli, "--limit", "2") == [3, 4]
    assert listed(kafka_cli, "--limit", "0") == [1, 2, 3, 4]
    shown = kafka_cli("dead-letters", "list", "--limit", "2").stdout
    assert "4 dead letters, the newest 2 shown; --limit 0 shows all" in shown


def test_what_is_no_dead_letter_is_reported_and_passed_over(kafka_cli: Cli, letters: Letters) -> None:
    with Publisher(letters.settings) as publisher:
        publisher.publish_bytes(letters.topic, b"k", b"nonsense")
    letters.put(1)
    result = kafka_cli("dead-letters", "list")
    assert ":1:1 " in result.stdout
    assert f"1 record there can't be read, the first at {letters.topic}:0:0: bad magic" in result.stderr


def test_show_keeps_the_value_back(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(7, consumers=("assembler", "sink"))
    shown = kafka_cli("dead-letters", "show", "spans:1:7").stdout
    for words in (
        "bad_record, met by assembler",
        "met by sink",
        "detail 7",
        KEY.decode(),
        "twice: 0xff",
        "Span",
    ):
        assert words in shown
    assert "secret" not in shown
    assert SPAN[:8].hex(" ") not in shown
    assert "2026-09-21 14:13:20.000000 UTC" in shown


def test_show_with_the_value(kafka_cli: Cli, letters: Letters, tmp_path: Any) -> None:
    place = letters.put(7)
    path = tmp_path / "value.bin"
    shown = kafka_cli("dead-letters", "show", place, "--value", "--output", str(path)).stdout
    assert SPAN[:8].hex(" ") in shown
    assert '"request": "the secret prompt"' in shown
    assert path.read_bytes() == SPAN
    assert "there is no dead letter of" in kafka_cli("dead-letters", "show", "spans:1:8", status=1).stderr


@pytest.mark.parametrize(
    "value", [SPAN, b"\x07garbage", b"", None], ids=["whole", "garbage", "empty", "none"]
)
def test_replay_publishes_the_same_record(kafka_cli: Cli, letters: Letters, value: bytes | None) -> None:
    place = letters.put(7, value=value)
    with Publisher(letters.settings) as publisher:
        publisher.publish_bytes(letters.spans, KEY, b"its neighbour")
    said = kafka_cli("dead-letters", "replay", place, "--yes").stdout
    assert "1 record replayed and acknowledged" in said
    neighbour, copy = letters.published()
    assert copy.partition() == neighbour.partition()
    assert (copy.key(), copy.value()) == (KEY, value)
    assert copy.headers() == [*HEADERS, ("headrace-replay-of", place.encode())]


def test_a_record_without_a_key_goes_to_its_own_partition(kafka_cli: Cli, letters: Letters) -> None:
    for partition in (0, 3):
        letters.put(7, key=None, partition=partition)
    kafka_cli("dead-letters", "replay", "--all", "--yes")
    assert sorted((message.key(), message.partition()) for message in letters.published()) == [
        (None, 0),
        (None, 3),
    ]


def test_replay_leaves_out_what_was_replayed(kafka_cli: Cli, letters: Letters) -> None:
    first = letters.put(1)
    kafka_cli("dead-letters", "replay", "--all", "--yes")
    letters.put(2)
    result = kafka_cli("dead-letters", "replay", "--topic", "spans", "--yes")
    assert "left out: 1 record replayed before" in result.stderr
    assert "1 record replayed and acknowledged" in result.stdout
    assert "nothing to replay" in kafka_cli("dead-letters", "replay", first, "--yes").stdout
    assert "1 record replayed" in kafka_cli("dead-letters", "replay", first, "--again", "--yes").stdout
    replayed = [dict(message.headers())["headrace-replay-of"] for message in letters.published()]
    assert replayed.count(first.encode()) == 2
    assert len(replayed) == 3
    # The mark is no dead letter of its own.
    assert listed(kafka_cli) == [1, 2]
    assert len(kafka_cli.json("dead-letters", "list")[0]["replays"]) == 2
    shown = kafka_cli("dead-letters", "show", first).stdout
    assert f"published again as {letters.spans}:" in shown


def test_a_mark_holds_no_value(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(1)
    kafka_cli("dead-letters", "replay", "--all", "--yes")
    mark = CODEC.decode(letters.published(letters.topic)[-1].value(), DeadLetter)
    assert (mark.consumer, mark.reason, mark.value, mark.headers) == ("replay", "replayed", None, ())


@pytest.mark.parametrize(
    ("arguments", "stdin", "ending"),
    [
        ([], None, (2, "say which: places, --topic")),
        (["--all"], "n\n", (1, "Publish 2 records again? [y/N]: n")),
        (["--all"], "", (1, "Aborted!")),
        (["--all", "--dry-run"], None, (0, "dry run: nothing was published")),
        (["--reason", "nope"], None, (0, "nothing to replay")),
        (["spans:1:99"], None, (1, "there is no dead letter of")),
        (["spans:x:99"], None, (2, "is not TOPIC:PARTITION:OFFSET")),
    ],
)
def test_replay_publishes_nothing(
    kafka_cli: Cli, letters: Letters, arguments: list[str], stdin: str | None, ending: tuple[int, str]
) -> None:
    letters.put(1)
    letters.put(2)
    status, words = ending
    result = kafka_cli("dead-letters", "replay", *arguments, status=status, stdin=stdin)
    assert words in result.output
    assert letters.published() == []


def test_replay_asks_and_says_how_many(kafka_cli: Cli, letters: Letters) -> None:
    for offset in range(3):
        letters.put(offset)
    said = kafka_cli("dead-letters", "replay", "--reason", "bad_record", stdin="y\n").stdout
    assert "Publish 3 records again?" in said
    assert "3 records replayed and acknowledged" in said
    assert len(letters.published()) == 3


def test_what_came_from_a_file_is_left_out(kafka_cli: Cli, letters: Letters) -> None:
    place = letters.put(4, topic="notes.jsonl")
    letters.put(5)
    result = kafka_cli("dead-letters", "replay", "--all", "--yes")
    assert "left out: 1 record came from no topic of this broker: notes.jsonl:1:4" in result.stderr
    assert len(letters.published()) == 1
    assert "can't be replayed" in kafka_cli("dead-letters", "replay", place, "--yes", status=1).stderr


def test_what_was_kept_cut_is_left_out(kafka_cli: Cli, letters: Letters) -> None:
    """Its bytes are not the record's."""
    place = letters.put(4, value=b"x" * (MAX_ORIGINAL_BYTES + 1))
    letters.put(5)
    result = kafka_cli("dead-letters", "replay", "--all", "--yes")
    assert f"left out: 1 record too large to be kept whole: {place}" in result.stderr
    assert len(letters.published()) == 1
    assert "can't be replayed" in kafka_cli("dead-letters", "replay", place, "--yes", status=1).stderr


def test_what_kafka_refuses_is_an_error_and_the_others_go_on(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(1)
    lost = letters.put(2, key=None, partition=77)
    result = kafka_cli("dead-letters", "replay", "--all", "--yes", status=1)
    assert "1 record replayed and acknowledged" in result.stdout
    assert f"not replayed: {lost}: " in result.stderr
    assert "1 record could not be replayed" in result.stderr
    assert len(letters.published()) == 1
    assert [bool(row["replays"]) for row in kafka_cli.json("dead-letters", "list")] == [True, False]


def test_many_are_marked_as_they_are_acknowledged(letters: Letters) -> None:
    with Publisher(letters.settings) as publisher:
        for offset in range(1200):
            record = LogRecord(letters.spans, 1, offset, TIME_MS, b"%d" % offset, b"v%d" % offset)
            publisher.publish(dead_letter("sink", record, "bad_record", ""))
    log = DeadLetterLog(letters.settings, CODEC)
    replay = Replay(letters.settings, CODEC, log)
    assert list(replay.run(list(log.contents().letters.values()))) == [500, 1000, 1200]
    assert sorted(m.value() for m in letters.published()) == sorted(b"v%d" % offset for offset in range(1200))
    assert all(letter.replays for letter in log.contents().letters.values())


def test_reading_leaves_no_group_behind(kafka_cli: Cli, letters: Letters) -> None:
    letters.put(1)
    kafka_cli("dead-letters", "list")
    admin = admin_client(letters.settings)
    groups = admin.list_consumer_groups().result(30).valid
    assert not [group for group in groups if group.group_id.startswith(letters.settings.topic_prefix)]
