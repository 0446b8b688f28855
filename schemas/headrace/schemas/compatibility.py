"""FULL_TRANSITIVE compatibility: each version of a schema reads what each other version wrote.

Follows Avro's schema resolution rules (specification 1.12, "Schema Resolution"), narrowed: types may
not change at all, fields come and go only with a default. That is stricter than Avro where it allows
promotion (int to long), since promotion works in one direction only.
"""

from collections.abc import Iterator
from typing import Any

from headrace.schemas.versions import versions


def incompatibilities(record: str) -> list[str]:
    """What stops a version of this record from reading another, in words; empty when all is well."""
    every = versions(record)
    found = []
    for older in every:
        for newer in every[older.version :]:
            pair = f"{record} {older.version} ↔ {newer.version}"
            found += [f"{pair}: {problem}" for problem in differences(older.source, newer.source)]
    return found


def differences(a: Any, b: Any) -> list[str]:  # noqa: ANN401  schemas are JSON
    """What makes two schemas unable to read each other, each with the path to it."""
    return list(_compare(a, b, "", _named(a), _named(b)))


def _named(schema: Any) -> dict[str, Any]:  # noqa: ANN401
    """Records defined anywhere in a schema, by name: later mentions are by name alone."""
    found: dict[str, Any] = {}
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            if item.get("type") == "record":
                found[item["name"]] = item
                stack += [field["type"] for field in item["fields"]]
            else:
                stack += [value for key, value in item.items() if key in {"type", "items", "values"}]
    return found


def _compare(a: Any, b: Any, path: str, names_a: dict[str, Any], names_b: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401
    a = names_a.get(a, a) if isinstance(a, str) else a
    b = names_b.get(b, b) if isinstance(b, str) else b
    where = path or "the record"
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{where}: unions of {len(a)} and {len(b)} types"
        for branch_a, branch_b in zip(a, b, strict=False):
            yield from _compare(branch_a, branch_b, path, names_a, names_b)
    elif isinstance(a, dict) and isinstance(b, dict) and a.get("type") == b.get("type"):
        if a["type"] == "record":
            yield from _compare_records(a, b, path, names_a, names_b)
        elif a["type"] in {"array", "map"}:
            inner = "items" if a["type"] == "array" else "values"
            yield from _compare(a[inner], b[inner], f"{path}[]", names_a, names_b)
        elif {k: v for k, v in a.items() if k != "doc"} != {k: v for k, v in b.items() if k != "doc"}:
            yield f"{where}: {a} and {b}"
    elif a != b:
        yield f"{where}: {_short(a)} and {_short(b)}"


def _compare_records(
    a: dict[str, Any], b: dict[str, Any], path: str, names_a: dict[str, Any], names_b: dict[str, Any]
) -> Iterator[str]:
    where = path or "the record"
    for key in ("name", "namespace"):
        if a.get(key) != b.get(key):
            yield f"{where}: {key} changed from {a.get(key)} to {b.get(key)}"
    fields_a = {field["name"]: field for field in a["fields"]}
    fields_b = {field["name"]: field for field in b["fields"]}
    for name in fields_a | fields_b:
        field_path = f"{path}.{name}" if path else name
        if name in fields_a and name in fields_b:
            yield from _compare(fields_a[name]["type"], fields_b[name]["type"], field_path, names_a, names_b)
        elif "default" not in (fields_a.get(name) or fields_b[name]):
            verb = "removed" if name in fields_a else "added"
            yield f"{field_path}: {verb}, and it has no default"


def _short(schema: Any) -> str:  # noqa: ANN401
    if not isinstance(schema, dict):
        return str(schema)
    name = str(schema.get("name") or schema["type"])
    return f"{name} ({schema['logicalType']})" if "logicalType" in schema else name
