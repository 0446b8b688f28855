"""The sink's writer on a real ClickHouse: fidelity, poison, constraints, deduplication (G5, G6, G8)."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from clickhouse_connect.driver.client import Client
from tests.builders import CODEC, EPOCH_MS, TIME, Attempt, an_id
from tests.streams.processors.assembling import assemble
from tests.streams.processors.test_assembler import FULL

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.schemas import codec as codec_module
from headrace.schemas.codec import Codec
from headrace.schemas.records import Record, Reward, Span, Trajectory
from headrace.schemas.registry import LockedIds, WriterSchema
from headrace.schemas.topics import TopicSpec, topic_specs
from headrace.schemas.versions import newest
from headrace.streams.clickhouse import ClickHouseRefusedError, ClickHouseUnavailableError, connect, migrate
from headrace.streams.processor import LogRecord
from headrace.streams.processors.sink.statement import column_names
from headrace.streams.processors.sink.tables import TABLES
from headrace.streams.processors.sink.writer import Batch, ClickHouseWriter
from headrace.streams.settings import ClickHouseSettings

pytestmark = pytest.mark.integration

EXAMPLES = Path(codec_module.__file__).parent / "examples"


@pytest.fixture
def settings(clickhouse: ClickHouseServer, database: str) -> ClickHouseSettings:
    found = ClickHouseSettings(host="127.0.0.1", port=clickhouse.port, database=database)
    migrate(found, asset("clickhouse"))
    return found


@pytest.fixture
def client(settings: ClickHouseSettings) -> Iterator[Client]:
    client = connect(settings)
    yield client
    client.command(f"DROP DATABASE {settings.database}")
    client.close()


@pytest.fixture
def writer(client: Client, settings: ClickHouseSettings) -> ClickHouseWriter:
    return ClickHouseWriter(client, settings, CODEC)


def spec_of(record: type[Record]) -> TopicSpec:
    return next(spec for spec in topic_specs().values() if spec.record == record.__name__)


def batch_of(spec: TopicSpec, values: list[bytes | None], *, partition: int = 0, first: int = 0) -> Batch:
    topic = spec.full_name("headrace")
    records = [
        LogRecord(topic, partition, first + i, EPOCH_MS, b"key", value, (("traceparent", b"00"),))
        for i, value in enumerate(values)
    ]
    return Batch(spec, topic, partition, first, first + len(values) - 1, records)


def encoded(*records: Record) -> list[bytes | None]:
    return [CODEC.encode(record, "any") for record in records]


@pytest.mark.parametrize("topic", sorted(TABLES))
def test_every_field_of_every_golden_example_comes_back_as_it_was(
    topic: str, client: Client, writer: ClickHouseWriter
) -> None:
    spec = topic_specs()[topic]
    examples = json.loads((EXAMPLES / spec.record / f"{newest(spec.record).version}.json").read_text())
    values: list[bytes | None] = [bytes.fromhex(example["hex"]) for example in examples]
    assert writer.write(batch_of(spec, values)) == []
    for table in TABLES[topic]:
        if table.joined:
            continue  # several rows a record: has a test of its own
        rows = list(
            client.query(
                f"SELECT * FROM {table.name} ORDER BY kafka_offset",
                column_formats={"value": "bytes", "key_bytes": "bytes"} if topic == "dead-letters" else {},
            ).named_results()
        )
        assert len(rows) == len(values)
        for row, value in zip(rows, values, strict=True):
            record = CODEC.decode(value, spec.record_type)
            assert row["kafka_timestamp"] == datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
            for name in type(record).model_fields:
                if name in table.omit or name in table.replace:
                    continue
                compare_field(name, getattr(record, name), row, table.flatten)


def compare_field(name: str, value: Any, row: dict[str, Any], flatten: Any) -> None:
    if name in flatten:
        for part in type(value).model_fields if value is not None else ():
            compare_field(f"{flatten[name]}{part}", getattr(value, part), row, {})
    elif isinstance(value, tuple) and f"{name}." in "".join(f"{column} " for column in row):
        for part in type(value[0]).model_fields if value else ():
            found = row[f"{name}.{part}"]
            assert [comparable(x) for x in found] == [comparable(getattr(item, part)) for item in value], name
    else:
        assert comparable(row[name]) == comparable(value), name


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return value.hex() if value == value else "nan"  # noqa: PLR0124  NaN
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "table", [table for tables in TABLES.values() for table in tables], ids=lambda table: table.name
)
def test_the_sink_fills_every_column_of_every_table(table: Any, client: Client) -> None:
    rows = client.query(
        "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {t:String} "
        "AND default_kind = ''",
        parameters={"t": table.name},
    ).result_rows
    assert {row[0] for row in rows} == set(column_names(table, newest(table.record).source))


def test_transitions_have_their_prompts_in_full(client: Client, writer: ClickHouseWriter) -> None:
    a, b = Attempt("a"), Attempt("b")
    turns = [a.call(1, (1, 2), (3, 4)), a.call(2, (1, 2, 3, 4, 5), (6,)), a.call(3, (1, 2, 9), (7, 8))]
    step_reward = a.reward(0.5, 4, name="style", about_sequence_id=2)
    full = assemble([a.started(), *turns, step_reward, a.reward(), a.ended(4)])
    empty = assemble([b.started(), b.ended(0, "failed")])
    assert writer.write(batch_of(spec_of(Trajectory), encoded(empty, full))) == []
    rows = list(client.query("SELECT * FROM transitions ORDER BY step").named_results())
    assert [tuple(row["prompt_token_ids"]) for row in rows] == list(full.prompts())
    assert [row["prefix_len"] for row in rows] == [0, 4, 2]
    assert rows[1]["rewards.value"] == [0.5]
    assert [row["is_last"] for row in rows] == [False, False, True]
    assert [tuple(row["response_logprobs"]) for row in rows] == [
        t.response_logprobs for t in full.transitions
    ]
    verdicts = client.query("SELECT status, accepted, num_transitions, num_trainable FROM trajectories")
    assert sorted(verdicts.result_rows) == [("failed", False, 0, 0), ("succeeded", True, 3, 3)]


def test_a_prefix_longer_than_what_came_before_is_refused(client: Client, writer: ClickHouseWriter) -> None:
    good = assemble(FULL)
    bad_step = good.transitions[1].model_copy(update={"prefix_len": 99})
    bad = good.model_copy(update={"attempt_id": an_id("bad"), "transitions": (good.transitions[0], bad_step)})
    letters = writer.write(batch_of(spec_of(Trajectory), encoded(good, bad)))
    assert [(letter.offset, letter.reason) for letter in letters] == [(1, "refused_by_clickhouse")]
    assert client.query("SELECT uniqExact(attempt_id) FROM transitions").result_rows == [(1,)]


def poison() -> list[bytes | None]:
    (value,) = encoded(Attempt().call(1))
    assert value is not None
    (reward,) = encoded(Attempt().reward())
    broken = value.replace(b"chat", b"ch\xff\xfe")
    assert broken != value
    return [
        b"\x01" + value[1:],
        b"\x00\x7f\xff\xff\xff" + value[5:],
        *(value[:cut] for cut in (0, 4, 5, 6, 40, len(value) // 2, len(value) - 1)),
        value + b"\x00",
        value + value,
        reward,
        None,
        broken,
        b'{"json": true}',
    ]


@pytest.mark.parametrize("place", ["first", "last", "between"])
def test_poison_becomes_dead_letters_and_the_others_are_kept(
    place: str, client: Client, writer: ClickHouseWriter
) -> None:
    """C9: whatever is wrong with some records, each good one is in the table, once."""
    good = encoded(*(Attempt(f"g{i}").call(1) for i in range(20)))
    bad = poison()
    values = {"first": [*bad, *good], "last": [*good, *bad], "between": [*good[:10], *bad, *good[10:]]}[place]
    batch = batch_of(spec_of(Span), values)
    letters = writer.write(batch)
    by_offset = {record.offset: record for record in batch.records}
    expected = {offset for offset, record in by_offset.items() if record.value in bad}
    assert {letter.offset for letter in letters} == expected
    for letter in letters:
        record = by_offset[letter.offset]
        assert (letter.value, letter.key_bytes) == (record.value, record.key)
        assert letter.headers[0].key == "traceparent"
    assert client.query("SELECT count() FROM spans_log").result_rows == [(20,)]
    again = writer.write(batch)
    assert again == letters
    assert client.query("SELECT count() FROM spans_log").result_rows == [(20,)]


a = Attempt()


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        pytest.param(a.reward(), {"value": float("nan")}, id="NaN reward (C17)"),
        pytest.param(a.reward(), {"value": float("inf")}, id="infinite reward"),
        pytest.param(a.reward(), {"sequence_id": 0}, id="sequence id 0"),
        pytest.param(a.reward(), {"about_sequence_id": -1}, id="about -1"),
        pytest.param(a.reward(), {"reward_id": "7"}, id="no UUIDv7"),
        pytest.param(a.reward(), {"name": ""}, id="no name"),
        pytest.param(a.reward(), {"kind": "other"}, id="reward kind"),
        pytest.param(a.call(1), {"sequence_id": None}, id="span without id"),
        pytest.param(a.call(1), {"sequence_id": -3}, id="negative id"),
        pytest.param(a.call(1), {"kind": "closed"}, id="mark with id"),
        pytest.param(a.call(1), {"kind": "weird"}, id="span kind"),
        pytest.param(a.call(1), {"status": "weird"}, id="span status"),
        pytest.param(a.call(1), {"span_id": ""}, id="no span id"),
        pytest.param(a.call(1), {"attempt_id": "A" * 36}, id="attempt id"),
        pytest.param(a.started(), {"kind": "paused"}, id="event kind"),
        pytest.param(a.started(), {"status": "succeeded"}, id="started, succeeded"),
        pytest.param(a.started(), {"origin": None}, id="no origin"),
        pytest.param(a.ended(1), {"last_sequence_id": -1}, id="last id"),
        pytest.param(a.ended(1), {"rollout_id": ""}, id="no rollout"),
    ],
)
def test_what_the_models_refuse_clickhouse_refuses_too(
    record: Record, changes: dict[str, Any], client: Client, writer: ClickHouseWriter
) -> None:
    """Written by a program without our models; the neighbour stays."""
    good, bad = encoded(record, record.model_copy(update=changes))
    letters = writer.write(batch_of(spec_of(type(record)), [good, bad]))
    assert [(letter.offset, letter.reason) for letter in letters] == [(1, "bad_record")]
    table = TABLES[spec_of(type(record)).name][0].name
    assert client.query(f"SELECT count() FROM {table}").result_rows == [(1,)]


def test_a_batch_written_twice_adds_nothing(client: Client, writer: ClickHouseWriter) -> None:
    """G5: by token, before any merge."""
    batch = batch_of(spec_of(Reward), encoded(*(Attempt(f"d{i}").reward() for i in range(50))), first=7)
    writer.write(batch)
    writer.write(batch)
    assert client.query("SELECT count() FROM rewards_log").result_rows == [(50,)]


def test_records_published_twice_or_inserted_past_the_window_show_once(
    client: Client, writer: ClickHouseWriter
) -> None:
    """C11: other offsets or other ranges, so other tokens; views count by key, the first in the log wins."""
    first = a.call(1, response=(3, 4))
    again = first.model_copy(update={"name": "second"})
    for records, start in (([first, again], 0), ([again], 1), ([first], 0)):
        writer.write(batch_of(spec_of(Span), encoded(*records), first=start))
    assert client.query("SELECT count() FROM spans_log").first_row[0] > 1
    assert client.query("SELECT name FROM spans").result_rows == [("chat",)]
    client.command("OPTIMIZE TABLE spans_log FINAL")
    assert client.query("SELECT name FROM spans").result_rows == [("chat",)]


def test_another_time_zone_shifts_nothing(clickhouse_factory: Any) -> None:
    """C16."""
    server = clickhouse_factory(timezone="Asia/Tokyo")
    server.start()
    settings = ClickHouseSettings(host="127.0.0.1", port=server.port)
    migrate(settings, asset("clickhouse"))
    client = connect(settings)
    start = datetime(2026, 3, 29, 1, 30, 0, 123457, tzinfo=UTC)
    span = a.span(1, start_time=start, end_time=datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    assert ClickHouseWriter(client, settings, CODEC).write(batch_of(spec_of(Span), encoded(span))) == []
    row = client.query("SELECT start_time, end_time, toString(start_time) FROM spans").first_row
    assert row == (span.start_time, span.end_time, "2026-03-29 01:30:00.123457")


def test_a_missing_table_stops_and_a_missing_server_does_not(
    client: Client, writer: ClickHouseWriter, settings: ClickHouseSettings, clickhouse_factory: Any
) -> None:
    client.command("DROP TABLE rewards_log")
    batch = batch_of(spec_of(Reward), encoded(a.reward()))
    with pytest.raises(ClickHouseRefusedError, match="rewards_log"):
        writer.write(batch)
    server = clickhouse_factory()
    server.start()
    away = ClickHouseSettings(host="127.0.0.1", port=server.port)
    migrate(away, asset("clickhouse"))
    other = ClickHouseWriter(connect(away), away, CODEC)
    server.kill()
    with pytest.raises(ClickHouseUnavailableError):
        other.write(batch)
    server.start()
    assert other.write(batch) == []


def test_a_constraint_that_fits_no_record_stops_instead_of_filling_dead_letters(
    client: Client, writer: ClickHouseWriter
) -> None:
    client.command("ALTER TABLE rewards_log ADD CONSTRAINT none CHECK value > 1e9")
    with pytest.raises(ClickHouseRefusedError, match="none of 8 well-formed records"):
        writer.write(batch_of(spec_of(Reward), encoded(*(Attempt(f"c{i}").reward() for i in range(8)))))


def test_an_older_version_gets_the_defaults_of_what_it_did_not_know(
    client: Client, settings: ClickHouseSettings
) -> None:
    old = json.loads(json.dumps(newest("Reward").source))
    old["fields"] = [f for f in old["fields"] if f["name"] not in {"name", "kind", "about_sequence_id"}]
    ids = LockedIds()
    ids._schemas[9000] = WriterSchema("Reward", old, fastavro.parse_schema(old))
    stream = io.BytesIO()
    stream.write(b"\x00" + (9000).to_bytes(4, "big"))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(old), a.reward(2.5).to_avro())
    writer = ClickHouseWriter(client, settings, Codec(ids))
    batch = batch_of(spec_of(Reward), [stream.getvalue(), *encoded(a.reward(1.5, time=TIME))])
    assert writer.write(batch) == []
    rows = client.query(
        "SELECT value, name, kind, about_sequence_id FROM rewards_log ORDER BY value"
    ).result_rows
    assert rows == [(1.5, "outcome", "reward", None), (2.5, "outcome", "reward", None)]


def test_spans_are_late_by_where_they_stand_in_the_log(client: Client, writer: ClickHouseWriter) -> None:
    """C1: also of an attempt whose last id nobody knows, since the dispatcher ended it."""
    late = Attempt("late")
    closed, _ = late.closing()
    log: list[Record] = [late.call(1), closed, late.call(2)]
    assert writer.write(batch_of(spec_of(Span), encoded(*log))) == []
    verdict = assemble([late.started(), late.ended(None, "timeout"), *late.closing()])
    assert writer.write(batch_of(spec_of(Trajectory), encoded(verdict))) == []
    done = Attempt("done")
    spans = batch_of(spec_of(Span), encoded(done.call(1), done.call(2)), first=10)
    assert writer.write(spans) == []
    verdict = assemble([done.started(), done.call(1), done.reward(), done.ended(1)])
    assert writer.write(batch_of(spec_of(Trajectory), encoded(verdict), first=10)) == []
    rows = client.query("SELECT attempt_id, sequence_id, late FROM spans").result_rows
    assert {(attempt, at): bool(is_late) for attempt, at, is_late in rows} == {
        (late.attempt_id, 1): False,
        (late.attempt_id, 2): True,
        (done.attempt_id, 1): False,
        (done.attempt_id, 2): True,
    }
