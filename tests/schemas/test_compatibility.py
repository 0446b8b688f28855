"""FULL_TRANSITIVE: what may change between versions of a schema, and what may not."""

import copy
import io
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from headrace.schemas.compatibility import differences, incompatibilities
from headrace.schemas.records import RECORDS
from headrace.schemas.versions import newest

Schema = dict[str, Any]
TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
BASE: Schema = {
    "type": "record",
    "name": "R",
    "namespace": "io.headrace",
    "doc": "as it was",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "int", "default": 0},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "time", "type": TIMESTAMP},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "map", "type": {"type": "map", "values": "long"}, "default": {}},
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "P",
                    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}],
                },
            },
            "default": [],
        },
        {"name": "part", "type": ["null", "P"], "default": None},
    ],
}


def field(schema: Schema, name: str) -> dict[str, Any]:
    return next(item for item in schema["fields"] if item["name"] == name)


def part(schema: Schema) -> Schema:
    found: Schema = field(schema, "parts")["type"]["items"]
    return found


def change_type(name: str, new: Any) -> Callable[[Schema], object]:
    return lambda schema: field(schema, name).update(type=new)


def remove(name: str) -> Callable[[Schema], object]:
    return lambda schema: schema["fields"].remove(field(schema, name))


def add(**new: Any) -> Callable[[Schema], object]:
    return lambda schema: schema["fields"].append(new)


LEGAL: dict[str, Callable[[Schema], object]] = {
    "nothing": lambda schema: schema,
    "a field with a default comes": add(name="new", type="string", default=""),
    "a field that may be null comes": add(name="new", type=["null", "long"], default=None),
    "a field with a default goes": remove("count"),
    "a list goes": remove("tags"),
    "a field of a part comes": lambda s: part(s)["fields"].append({"name": "z", "type": "int", "default": 0}),
    "a field of a part goes": lambda s: part(s)["fields"].pop(),
    "fields change places": lambda s: s["fields"].sort(key=lambda item: str(item["name"]), reverse=True),
    "a doc changes": lambda s: s.update(doc="as it is") or field(s, "id").update(doc="new"),
    "a default changes": lambda s: field(s, "count").update(default=1),
}
ILLEGAL: dict[str, tuple[Callable[[Schema], object], list[str]]] = {
    "a field without a default comes": (
        add(name="new", type="string"),
        ["new: added, and it has no default"],
    ),
    "a field without a default goes": (remove("id"), ["id: removed, and it has no default"]),
    "a field is renamed": (
        lambda s: field(s, "id").update(name="key"),
        ["id: removed, and it has no default", "key: added, and it has no default"],
    ),
    "int grows to long": (change_type("count", "long"), ["count: int and long"]),
    "a field may be null from now on": (
        change_type("id", ["null", "string"]),
        ["id: string and ['null', 'string']"],
    ),
    "a field may no longer be null": (change_type("note", "string"), ["note: ['null', 'string'] and string"]),
    "a union grows": (
        change_type("note", ["null", "string", "long"]),
        ["note: unions of 2 and 3 types"],
    ),
    "a union is turned round": (
        change_type("note", ["string", "null"]),
        ["note: null and string", "note: string and null"],
    ),
    "a time loses its meaning": (change_type("time", "long"), ["time: long (timestamp-micros) and long"]),
    "micros become millis": (
        change_type("time", {"type": "long", "logicalType": "timestamp-millis"}),
        [f"time: {TIMESTAMP} and {{'type': 'long', 'logicalType': 'timestamp-millis'}}"],
    ),
    "other items": (change_type("tags", {"type": "array", "items": "long"}), ["tags[]: string and long"]),
    "other values": (change_type("map", {"type": "map", "values": "double"}), ["map[]: long and double"]),
    "a list becomes a map": (
        change_type("tags", {"type": "map", "values": "string"}),
        ["tags: array and map"],
    ),
    "a part's field changes type": (
        lambda s: part(s)["fields"][0].update(type="string"),
        ["parts[].x: int and string", "part.x: int and string"],
    ),
    "a part gets a field without a default": (
        lambda s: part(s)["fields"].append({"name": "z", "type": "int"}),
        ["parts[].z: added, and it has no default", "part.z: added, and it has no default"],
    ),
    "a part is renamed": (
        lambda s: part(s).update(name="Q") or field(s, "part").update(type=["null", "Q"]),
        ["parts[]: name changed from P to Q", "part: name changed from P to Q"],
    ),
    "the record is renamed": (lambda s: s.update(name="S"), ["the record: name changed from R to S"]),
    "another namespace": (
        lambda s: s.update(namespace="org.example"),
        ["the record: namespace changed from io.headrace to org.example"],
    ),
}


def changed(change: Callable[[Schema], object]) -> Schema:
    schema = copy.deepcopy(BASE)
    change(schema)
    return schema


@pytest.mark.parametrize("change", LEGAL.values(), ids=LEGAL)
def test_legal_change(change: Callable[[Schema], object]) -> None:
    assert differences(BASE, changed(change)) == []
    assert differences(changed(change), BASE) == []


@pytest.mark.parametrize(("change", "problems"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_change(change: Callable[[Schema], object], problems: list[str]) -> None:
    assert differences(BASE, changed(change)) == problems
    assert len(differences(changed(change), BASE)) == len(problems)


@pytest.mark.parametrize("change", LEGAL.values(), ids=LEGAL)
def test_fastavro_reads_across_a_legal_change(change: Callable[[Schema], object]) -> None:
    value = {
        "id": "i",
        "time": datetime(2026, 7, 1, tzinfo=UTC),
        "parts": [{"x": 1}],
        "part": {"x": 2},
    }
    for writer, reader in itertools.permutations([BASE, changed(change)]):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(writer), value)
        stream.seek(0)
        again: Any = fastavro.schemaless_reader(
            stream, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
        assert {name: again[name] for name in ("id", "time")} == {
            name: value[name] for name in ("id", "time")
        }
        assert again["parts"][0]["x"] == 1
        assert again["part"]["x"] == 2


@pytest.mark.parametrize("record", RECORDS)
def test_all_versions_in_this_tree_read_each_other(record: str) -> None:
    assert incompatibilities(record) == []


def test_every_pair_of_versions_is_compared(add_version: Callable[[str, Schema], None]) -> None:
    """A field that goes and comes back as another type: neighbours agree, the first and third do not."""
    first = newest("Reward").source
    without = first | {"fields": [item for item in first["fields"] if item["name"] != "source"]}
    again = without | {"fields": [*without["fields"], {"name": "source", "type": "long", "default": 0}]}
    add_version("Reward", without)
    assert incompatibilities("Reward") == []
    add_version("Reward", again)
    assert incompatibilities("Reward") == ["Reward 1 ↔ 3: source: string and long"]
