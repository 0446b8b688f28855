"""The pydantic models and the newest Avro schemas say the same, field for field."""

import types
from datetime import datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import AwareDatetime

from headrace.schemas.compatibility import differences
from headrace.schemas.records import RECORDS
from headrace.schemas.records.base import AVRO_NAMESPACE, Part
from headrace.schemas.versions import AVRO_FOLDER, newest

TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
SIMPLE: dict[Any, Any] = {
    bool: "boolean",
    bytes: "bytes",
    float: "double",
    str: "string",
    datetime: TIMESTAMP,
    AwareDatetime: TIMESTAMP,
    types.NoneType: "null",
}
LARGE_INTEGERS = 2**31


def avro_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Any:  # noqa: PLR0911  one for each kind
    """The Avro type that a field of this type must have; parts stand for themselves."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    if annotation is int:
        return "long" if _largest(metadata) >= LARGE_INTEGERS else "int"
    if origin is Annotated:
        return avro_of(arguments[0], (*arguments[1:], *metadata))
    if origin is Literal:
        return "string"
    if origin is tuple:
        return {"type": "array", "items": avro_of(arguments[0])}
    if origin is dict:
        assert arguments[0] is str
        return {"type": "map", "values": avro_of(arguments[1])}
    if origin in {Union, types.UnionType}:
        branches = [avro_of(argument, metadata) for argument in arguments]
        distinct = [branch for i, branch in enumerate(branches) if branch not in branches[:i]]
        # Avro wants the branch of the default first, and the default of what may be null is null.
        distinct.sort(key=lambda branch: branch != "null")
        return distinct if len(distinct) > 1 else distinct[0]
    return annotation


def _largest(metadata: tuple[Any, ...]) -> int:
    constraints = [inner for item in metadata for inner in (item, *getattr(item, "metadata", ()))]
    return min(int(item.le) for item in constraints if getattr(item, "le", None) is not None)


def disagreements(model: type[Part], schema: dict[str, Any], path: str) -> list[str]:
    """Where a model and a record schema differ, each with the path to it."""
    found = []
    if schema["name"] != model.__name__:
        found.append(f"{path}: {schema['name']} and {model.__name__}")
    fields = {field["name"]: field for field in schema["fields"]}
    if list(fields) != list(model.model_fields):
        found.append(f"{path}: fields {list(fields)} and {list(model.model_fields)}")
    for name in fields.keys() & model.model_fields.keys():
        here, field = f"{path}.{name}", model.model_fields[name]
        found += _compare(avro_of(field.annotation, tuple(field.metadata)), fields[name]["type"], here)
        if field.is_required() != ("default" not in fields[name]):
            found.append(f"{here}: one of the two has a default, and the other has none")
        elif not field.is_required():
            expected = _as_json(field.get_default(call_default_factory=True))
            if fields[name]["default"] != expected:
                found.append(f"{here}: defaults {fields[name]['default']!r} and {expected!r}")
    return found


def _compare(expected: Any, actual: Any, path: str) -> list[str]:
    if isinstance(expected, type) and issubclass(expected, Part):
        return disagreements(expected, actual, path)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = zip(expected, actual, strict=True)
        return [problem for a, b in pairs for problem in _compare(a, b, path)]
    for inner in ("items", "values"):
        if isinstance(expected, dict) and isinstance(actual, dict) and inner in expected and inner in actual:
            return _compare(expected[inner], actual[inner], f"{path}[]")
    return [] if expected == actual else [f"{path}: {actual} and {expected}"]


def _as_json(value: Any) -> Any:
    if isinstance(value, Part):
        return {name: _as_json(getattr(value, name)) for name in type(value).model_fields}
    return list(value) if isinstance(value, tuple) else value


def find(schema: Any, name: str) -> dict[str, Any]:
    """The record of this name within a schema."""
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, dict) and item.get("type") == "record" and item["name"] == name:
            return item
        stack += item if isinstance(item, list) else item.values() if isinstance(item, dict) else []
    raise AssertionError(f"no record {name}")


def without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: without_docs(value) for key, value in schema.items() if key not in {"doc", "namespace"}}
    return [without_docs(item) for item in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("record", RECORDS)
def test_model_and_schema_agree(record: str) -> None:
    assert disagreements(RECORDS[record], newest(record).source, record) == []


@pytest.mark.parametrize("record", RECORDS)
def test_schema_is_in_the_namespace(record: str) -> None:
    assert newest(record).source["namespace"] == AVRO_NAMESPACE


def test_the_agreement_check_sees_differences() -> None:
    schema = without_docs(newest("Reward").source)
    by_name = {field["name"]: field for field in schema["fields"]}
    by_name["value"]["type"] = "float"
    by_name["sequence_id"]["type"] = ["long", "null"]
    by_name["name"]["default"] = "result"
    del by_name["source"]["default"]
    schema["fields"].reverse()
    problems = " ".join(disagreements(RECORDS["Reward"], schema, "R"))
    for expected in ("R: fields", "R.value: float", "R.sequence_id:", "R.name: defaults", "R.source: one of"):
        assert expected in problems


def test_a_shard_s_trajectory_is_the_trajectory_of_its_own_topic() -> None:
    inlined = find(newest("BatchShard").source, "Trajectory")
    assert without_docs(inlined) == without_docs(newest("Trajectory").source)


def test_a_task_s_config_is_that_of_the_command() -> None:
    inlined = [find(newest(name).source, "RolloutConfig") for name in ("RolloutCommand", "AttemptTask")]
    assert differences(*inlined) == []
    assert without_docs(inlined[0]) == without_docs(inlined[1])


def test_every_schema_folder_is_a_record_s() -> None:
    assert {path.name for path in AVRO_FOLDER.iterdir() if path.is_dir()} == set(RECORDS)
