"""Bytes that were written once are read for ever."""

from collections import defaultdict
from typing import Any

import pytest
from tests.schemas.golden import FOLDER, Example, examples, file_of

from headrace.schemas.codec import Codec
from headrace.schemas.records import RECORDS
from headrace.schemas.records.base import Part
from headrace.schemas.versions import newest, versions

EXAMPLES = examples()


def test_every_version_has_its_examples_and_nothing_else_has() -> None:
    expected = {file_of(record, version.version) for record in RECORDS for version in versions(record)}
    assert set(FOLDER.rglob("*.json")) == expected
    names = defaultdict(list)
    for example in EXAMPLES:
        names[example.record, example.version].append(example.name)
    assert names.keys() == {(record, version.version) for record in RECORDS for version in versions(record)}
    for found in names.values():
        assert found[:2] == ["minimal", "full"]
        assert len(found) == len(set(found))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_the_bytes_decode_to_the_record(example: Example) -> None:
    decoded = Codec().decode(bytes.fromhex(example.hex), RECORDS[example.record])
    # As JSON, since NaN equals nothing.
    assert decoded.model_dump_json() == example.model().model_dump_json()


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.version == newest(e.record).version], ids=str)
def test_the_record_encodes_to_the_bytes(example: Example) -> None:
    assert Codec().encode(example.model(), "topic").hex() == example.hex


@pytest.mark.parametrize("record", RECORDS)
def test_minimal_gives_only_what_must_be_given(record: str) -> None:
    (minimal,) = (e for e in EXAMPLES if e.record == record and e.name == "minimal" and is_newest(e))
    required = {name for name, field in RECORDS[record].model_fields.items() if field.is_required()}
    assert minimal.values.keys() - {"sequence_id"} == required - {"sequence_id"}


@pytest.mark.parametrize("record", RECORDS)
def test_the_examples_use_every_field(record: str) -> None:
    used: set[str] = set()
    for example in EXAMPLES:
        if example.record == record and is_newest(example):
            _collect(example.model(), record, used)
    assert used == _all_fields(RECORDS[record], record)


def is_newest(example: Example) -> bool:
    return example.version == newest(example.record).version


def _collect(part: Part, path: str, used: set[str]) -> None:
    """Paths to fields that have a value other than their default."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if field.is_required() or value != field.default:
            used.add(f"{path}.{name}")
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Part):
                _collect(inner, f"{path}.{name}", used)


def _all_fields(model: type[Part], path: str) -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(f"{path}.{name}")
        for part in _parts_in(field.annotation):
            found |= _all_fields(part, f"{path}.{name}")
    return found


def _parts_in(annotation: Any) -> list[type[Part]]:
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    return [part for argument in getattr(annotation, "__args__", ()) for part in _parts_in(argument)]
