"""The views of training on real ClickHouse: groups, batches, validation, lineage back to a prompt."""

from collections.abc import Iterator
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from tests.builders import CODEC, EPOCH_MS, TIME, Attempt
from tests.schemas.golden import examples
from tests.streams.processors.assembling import assemble
from tests.streams.processors.batcher.scene import Host, pair, trajectory

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.schemas.records import GroupVerdict, Record, ResourceVersion, TrainStep, Trajectory
from headrace.schemas.topics import topic_of
from headrace.streams.clickhouse import connect, migrate, migrations
from headrace.streams.processor import LogRecord
from headrace.streams.processors.batcher.batcher import make_mark
from headrace.streams.processors.batcher.group import DEADLINE, Group
from headrace.streams.processors.sink.writer import Batch, ClickHouseWriter
from headrace.streams.settings import ClickHouseSettings

pytestmark = pytest.mark.integration


class Tables:
    """A database with records in it, written as the sink does."""

    def __init__(self, client: Client, settings: ClickHouseSettings) -> None:
        self._client = client
        self._settings = settings
        self._writer = ClickHouseWriter(client, settings, CODEC)
        self._next: dict[str, int] = {}

    def write(self, *records: Record) -> None:
        for record in records:
            topic = topic_of(type(record)).full_name("headrace")
            self.write_bytes(type(record), record.key, CODEC.encode(record, topic))

    def write_bytes(self, record: type[Record], key: bytes, value: bytes) -> None:
        spec = topic_of(record)
        topic = spec.full_name("headrace")
        at = self._next.get(topic, 0)
        self._next[topic] = at + 1
        logged = LogRecord(topic, 0, at, EPOCH_MS, key, value)
        assert self._writer.write(Batch(spec, topic, 0, at, at, [logged])) == []

    def migrate_again(self, name: str) -> None:
        """As after a migration that was cut short before it was known as applied."""
        folder = asset("clickhouse")
        (found,) = (each for each in migrations(folder) if each.name == name)
        database = self._settings.database
        self._client.command(
            f"ALTER TABLE {database}.migrations DELETE WHERE number >= {found.number}",
            settings={"mutations_sync": 2},
        )
        assert f"{found.number:04} {name}" in migrate(self._settings, folder)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return list(self._client.query(statement).result_rows)


@pytest.fixture
def tables(clickhouse: ClickHouseServer, database: str) -> Iterator[Tables]:
    settings = ClickHouseSettings(host="127.0.0.1", port=clickhouse.port, database=database)
    migrate(settings, asset("clickhouse"))
    client = connect(settings)
    yield Tables(client, settings)
    client.command(f"DROP DATABASE {database}")
    client.close()


def resource(name: str, version: int, kind: str, **fields: Any) -> ResourceVersion:
    return ResourceVersion(name=name, version=version, kind=kind, time=TIME, **fields)


def test_what_became_of_groups_and_batches(tables: Tables) -> None:
    host = Host(batch_groups=2, max_staleness=9)
    groups = [
        *pair("a"),
        *pair("b", 0.0, 0.5),
        *pair("alike", 1.0, 1.0),
        *pair("asked", 0.5, 1.0, mode="val"),
    ]
    still_open = trajectory("open", 0)
    host.feed(*groups, still_open)
    (shard,) = host.shards
    verdicts: list[GroupVerdict] = list(host.verdicts.values())
    mark = make_mark(Group("open", "", "train", 2, 0, 0), DEADLINE, EPOCH_MS)
    tables.write(*groups, still_open, mark, shard, *verdicts, *verdicts)
    tables.write(resource("policy", 2, "weights", trained_on=(shard.batch_id,)))
    found = {row[0]: row[1:] for row in tables.rows(
        "SELECT group_id, state, reason, num_rollouts, num_accepted, mean_outcome, batch_id "
        "FROM group_statistics"
    )}  # fmt: skip
    assert found == {
        "a": ("batched", None, 2, 2, 0.5, shard.batch_id),
        "b": ("batched", None, 2, 2, 0.25, shard.batch_id),
        "alike": ("excluded", "no_contrast", 2, 2, 1.0, None),
        "asked": ("excluded", "mode_val", 2, 2, 0.75, None),
        "open": ("open", None, 1, 1, 1.0, None),
    }
    assert sorted(tables.rows("SELECT mode, status, reason, num_groups FROM groups_by_fate")) == [
        ("train", "batched", "", 2),
        ("train", "excluded", "no_contrast", 1),
        ("val", "excluded", "mode_val", 1),
    ]
    assert tables.rows(
        "SELECT batch_id, num_groups, num_rollouts, num_transitions, num_tokens, mean_outcome, "
        "policy_version_min, policy_version_max, max_staleness, trained_versions FROM batch_statistics"
    ) == [(shard.batch_id, 2, 4, 4, 20, 0.375, 1, 1, 0, ["policy@2"])]
    assert tables.rows("SELECT settled_outcome_sum, settled_num_outcomes FROM batches") == [(1.5, 4)]
    assert tables.rows("SELECT * FROM validation_by_version") == [("val", 1, 1, 2, 2, 0.75)]
    # Marks are in the table, and in no view.
    assert tables.rows("SELECT count() FROM trajectories_log WHERE kind = 'closed'") == [(1,)]
    assert tables.rows("SELECT count() FROM trajectories") == [(9,)]


def test_a_batch_without_a_step_is_a_row_of_its_own(tables: Tables) -> None:
    """The run's step is as before it; what is written twice is one row all the same."""

    def step(batch_id: str, **fields: Any) -> TrainStep:
        return TrainStep(
            run_id="r", algorithm="grpo", policy_version=1, batch_ids=(batch_id,), time=TIME, **fields
        )

    trained = step("a", step=3, num_batches=4, num_steps=3)
    skipped = [step(name, step=3, num_batches=number, num_steps=0) for name, number in (("b", 5), ("c", 6))]
    tables.write(trained, *skipped, skipped[0])
    tables.migrate_again("skipped_batches")
    tables.write(trained, skipped[0])
    (diverged,) = (each for each in examples() if str(each) == "TrainStep-1-diverged")
    tables.write_bytes(TrainStep, b"run", bytes.fromhex(diverged.hex))
    found = tables.rows("SELECT run_id, step, num_batches, num_steps, batch_ids FROM train_steps")
    assert sorted(found) == [
        ("r", 3, 4, 3, ["a"]),
        ("r", 3, 5, 0, ["b"]),
        ("r", 3, 6, 0, ["c"]),
        ("run", 1, 0, None, []),
    ]


def test_lineage_leads_from_a_version_to_the_spans_and_the_prompt(tables: Tables) -> None:
    """Over what processors have made of two attempts, from their events on."""
    host = Host(batch_groups=1)
    given = {"system-prompt": 4, "policy": 6, "else": 1}
    attempts = [Attempt(name, group_id="g", group_size=2, resources=given) for name in "ab"]
    trajectories: list[Trajectory] = []
    for attempt, outcome in zip(attempts, (0.0, 1.0), strict=True):
        call = {"resource_name": "policy", "resource_version": 6}
        spans = [attempt.call(1, **call), attempt.call(2, prompt=(1, 2, 3, 4, 9), **call)]
        records = [attempt.started(), *spans, attempt.reward(outcome), attempt.ended(2)]
        trajectories.append(assemble(records))
        tables.write(*records)
    host.feed(*trajectories)
    (shard,) = host.shards
    tables.write(*trajectories, shard, *host.verdicts.values())
    tables.write(
        resource("system-prompt", 4, "prompt", content="…"),
        resource("else", 1, "sampling", content="{}"),
        resource("policy", 7, "weights", trained_on=(shard.batch_id,)),
    )
    rows = tables.rows(
        "SELECT resource_name, resource_version, batch_id, group_id, attempt_id, step, sequence_id, span_id, "
        "behaviour_version, reward, prompt_versions FROM lineage"
    )
    assert sorted(rows, key=str) == sorted(
        [
            ("policy", 7, shard.batch_id, "g", t.attempt_id, each.step, each.sequence_id, each.span_id, 6,
             t.outcome, {"system-prompt": 4})
            for t in trajectories
            for each in t.transitions
        ],
        key=str,
    )  # fmt: skip
