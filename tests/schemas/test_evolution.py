"""A program with version 1 of a schema and one with version 2 read what the other wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from tests.schemas import strategies
from tests.schemas.builders import ATTEMPT_ID, REWARD_ID, ROLLOUT_ID, TIME, make_reward
from tests.schemas.trees import looking_at

from headrace.schemas import versions
from headrace.schemas.codec import Codec
from headrace.schemas.compatibility import incompatibilities
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import RECORDS, Record, Reward
from headrace.schemas.records.base import Identifier, SequenceId, Timestamp, UuidV7
from headrace.schemas.registry import LockedIds, SchemaIds, WriterSchema

Schema = dict[str, Any]
FIRST_TREE = versions.AVRO_FOLDER


class LaterReward(Record):
    """The reward of a later program: `source` went, `weight` and `note` came, fields moved."""

    key_field: ClassVar[str] = "rollout_id"

    note: str | None = None
    rollout_id: UuidV7
    attempt_id: UuidV7
    sequence_id: SequenceId | None = None
    kind: str = "reward"
    reward_id: UuidV7
    name: Identifier = "outcome"
    value: float
    about_sequence_id: SequenceId | None = None
    time: Timestamp
    weight: float = 0.5


LaterReward.__name__ = "Reward"


def second_version(first: Schema) -> Schema:
    note = {"name": "note", "type": ["null", "string"], "default": None}
    weight = {"name": "weight", "type": "double", "default": 0.5}
    kept = [field for field in first["fields"] if field["name"] != "source"]
    return first | {"fields": [note, *kept, weight]}


class IdsOfBoth:
    """As with a registry: a program knows its own schemas, and fetches the one that it lacks."""

    def __init__(self, own: SchemaIds, fetched: dict[int, WriterSchema]) -> None:
        self._own, self._fetched = own, fetched

    def id_for(self, record: str, topic: str) -> int:
        return self._own.id_for(record, topic)

    def schema_of(self, schema_id: int) -> WriterSchema:
        return self._fetched.get(schema_id) or self._own.schema_of(schema_id)


class LaterTree(NamedTuple):
    """The schemas of the later program."""

    folder: Path
    schema_id: int
    schema: WriterSchema


@pytest.fixture
def later(avro_folder: Path, add_version: Callable[[str, Schema], None]) -> LaterTree:
    add_version("Reward", second_version(versions.newest("Reward").source))
    assert incompatibilities("Reward") == []
    versions.lock_all()
    ids = LockedIds()
    schema_id = ids.id_for("Reward", "t")
    return LaterTree(avro_folder, schema_id, ids.schema_of(schema_id))


def later_reward(**fields: Any) -> LaterReward:
    ids = {"rollout_id": ROLLOUT_ID, "attempt_id": ATTEMPT_ID, "reward_id": REWARD_ID}
    return LaterReward(**{**ids, "value": 1.0, "time": TIME, **fields})


def test_the_later_program_reads_both_versions(later: LaterTree) -> None:
    with looking_at(FIRST_TREE):
        old = Codec().encode(make_reward(source="grader", sequence_id=3), "t")
    with looking_at(later.folder):
        codec = Codec()
        assert codec.decode(old, LaterReward) == later_reward(sequence_id=3)
        new = later_reward(note="ü", weight=2.0)
        assert codec.decode(codec.encode(new, "t"), LaterReward) == new


def test_the_earlier_program_reads_the_later_version(later: LaterTree) -> None:
    with looking_at(later.folder):
        new = Codec().encode(later_reward(note="ü", weight=2.0, about_sequence_id=7), "t")
    with looking_at(FIRST_TREE):
        codec = Codec(IdsOfBoth(LockedIds(), {later.schema_id: later.schema}))
        assert codec.decode(new, Reward) == make_reward(about_sequence_id=7, source="")


def test_without_a_registry_the_earlier_program_does_not_know_the_later_id(later: LaterTree) -> None:
    """So without one, readers are upgraded before writers."""
    with looking_at(later.folder):
        new = Codec().encode(later_reward(), "t")
    with looking_at(FIRST_TREE), pytest.raises(BadRecordError, match=f"unknown schema id {later.schema_id}"):
        Codec().decode(new, Reward)


def test_bad_bytes_of_another_version_are_bad_records(later: LaterTree) -> None:
    with looking_at(FIRST_TREE):
        old = Codec().encode(make_reward(source="grader"), "t")
    with looking_at(later.folder):
        codec = Codec()
        for length in range(len(old)):
            with pytest.raises(BadRecordError):
                codec.decode(old[:length], LaterReward)
        with pytest.raises(BadRecordError, match="1 bytes are left after the Reward"):
            codec.decode(old + b"\x00", LaterReward)


def test_resolution_gives_what_reading_straight_gives(avro_folder: Path) -> None:
    """Every record, with a writer's schema that is equal to ours and not the very object."""
    ids = LockedIds()
    others = {schema_id: ids.schema_of(schema_id) for schema_id in (ids.id_for(r, "t") for r in RECORDS)}
    with looking_at(FIRST_TREE):
        codec = Codec(IdsOfBoth(ids, others))

        @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(record=strategies.records)
        def check(record: Record) -> None:
            name = type(record).__name__
            assert versions.newest(name).parsed is not others[ids.id_for(name, "t")].parsed
            again = codec.decode(codec.encode(record, "t"), type(record))
            assert again.model_dump_json() == record.model_dump_json()

        check()
