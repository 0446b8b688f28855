"""The INSERT that reads a container of one schema version into one table.

Generated from the writer's schema, since ClickHouse's Avro reader must be told the exact fields of each
nested record and applies none of Avro's defaults: a field that this writer did not know gets the newest
schema's default as a constant. Nullable fields are read by the name of their branch, or a bad branch
index would silently become NULL. Strings are checked to be UTF-8, which ClickHouse itself does not.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.streams.processors.sink.container import END

Schema = Any
"""A parsed Avro schema: JSON."""

_PRIMITIVES = {
    "boolean": "Bool",
    "int": "Int32",
    "long": "Int64",
    "double": "Float64",
    "string": "String",
    "bytes": "String",
}
_KAFKA_COLUMNS = ("kafka_partition", "kafka_offset", "kafka_timestamp")


@dataclass(frozen=True)
class Table:
    """Where a topic's records go. Columns follow the schema's fields, but for what is said here."""

    name: str
    record: str
    flatten: Mapping[str, str] = field(default_factory=dict)
    """Fields that hold one record: its fields become columns, with this prefix."""
    omit: frozenset[str] = frozenset()
    """Fields without a column."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Column → expression over the container's columns; also for columns that are no field."""
    presence: tuple[str, ...] = ()
    """Paths of the container to be read as nullable, to tell whether a nullable record is there."""
    source: Callable[[str], str] = str
    """Wraps `SELECT … FROM input(…)` where one record becomes several rows."""
    joined: str = ""
    """What follows FROM (…) then."""


@dataclass
class _Plan:
    """Columns of the container that are read, columns of the table that are written, checks."""

    structure: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)


def insert_statement(table: Table, writer: Schema, newest: Schema) -> str:
    """What stands between `INSERT INTO` and `FORMAT Avro`."""
    plan = _plan(table, writer)
    for column, literal in _defaults(table, newest).items():
        plan.columns.setdefault(column, literal)
    # Presence of a nullable record shows in a field of it that can't be null itself.
    plan.structure |= {path: f"Nullable({plan.structure[path]})" for path in table.presence}
    plan.columns |= table.replace
    structure = ", ".join(
        ["kafka_partition Int32", "kafka_offset Int64", "kafka_timestamp DateTime64(3, 'UTC')"]
        + [f"`{path}` {kind}" for path, kind in plan.structure.items()]
        + [f"kafka_end FixedString({len(END)})"]
    )
    checks = [f"NOT throwIf(kafka_end != '{END.decode()}', 'bytes are left over after the record')"]
    if plan.checks:
        checks.append(f"NOT throwIf(NOT ({' AND '.join(plan.checks)}), 'a string is not UTF-8')")
    columns = dict(zip(_KAFKA_COLUMNS, _KAFKA_COLUMNS, strict=True)) | plan.columns
    names = ", ".join(f"`{name}`" for name in columns)
    where = " AND ".join(checks)
    source = f"input({_quote(structure)}) WHERE {where}"
    if table.joined:
        source = f"({table.source(source)}) {table.joined}"
    return f"{table.name} ({names}) SELECT {', '.join(columns.values())} FROM {source}"  # noqa: S608  our own words


def column_names(table: Table, newest: Schema) -> list[str]:
    """Every column that the sink writes in this table."""
    return [*_KAFKA_COLUMNS, *(_plan(table, newest).columns | dict(table.replace))]


def _plan(table: Table, writer: Schema) -> _Plan:
    plan = _Plan()
    names = dict(_definitions(writer))
    for entry in writer["fields"]:
        _add_field(plan, table, entry["name"], entry["type"], names)
    return plan


def _add_field(plan: _Plan, table: Table, name: str, schema: Schema, names: dict[str, Schema]) -> None:
    path = f"value.{name}"
    schema = _resolve(schema, names)
    if name in table.flatten:
        inner = schema
        if isinstance(schema, list):
            inner = _resolve(_branch(schema), names)
            path = f"{path}.{inner['name']}"
        for entry in inner["fields"]:
            _add_column(
                plan, f"{path}.{entry['name']}", f"{table.flatten[name]}{entry['name']}", entry["type"], names
            )
        return
    _add_column(plan, path, None if name in table.omit else name, schema, names)


def _add_column(plan: _Plan, path: str, column: str | None, schema: Schema, names: dict[str, Schema]) -> None:
    schema = _resolve(schema, names)
    if isinstance(schema, list):
        inner = _resolve(_branch(schema), names)
        path = f"{path}.{inner if isinstance(inner, str) else inner['type']}"
        plan.structure[path] = f"Nullable({_kind(inner, names)})"
        plan.checks += _checks(f"ifNull(`{path}`, '')" if inner == "string" else f"`{path}`", inner, names)
    else:
        plan.structure[path] = _kind(schema, names)
        plan.checks += _checks(f"`{path}`", schema, names)
    if column is None:
        return
    items = _resolve(schema.get("items"), names) if isinstance(schema, dict) else None
    if isinstance(items, dict) and items["type"] == "record":
        for entry in items["fields"]:
            plan.columns[f"{column}.{entry['name']}"] = f"`{path}`.{entry['name']}"
    else:
        plan.columns[column] = f"`{path}`"


def _kind(schema: Schema, names: dict[str, Schema]) -> str:
    """The ClickHouse type that holds exactly what this schema can."""
    schema = _resolve(schema, names)
    if isinstance(schema, str):
        return _PRIMITIVES[schema]
    if isinstance(schema, list):
        return f"Nullable({_kind(_branch(schema), names)})"
    if schema.get("logicalType") == "timestamp-micros":
        return "DateTime64(6, 'UTC')"
    if schema["type"] == "array":
        return f"Array({_kind(schema['items'], names)})"
    if schema["type"] == "map":
        return f"Map(String, {_kind(schema['values'], names)})"
    fields = ", ".join(f"{entry['name']} {_kind(entry['type'], names)}" for entry in schema["fields"])
    return f"Tuple({fields})"


def _checks(  # noqa: PLR0911  one a type
    expression: str, schema: Schema, names: dict[str, Schema], depth: int = 0
) -> list[str]:
    """Conditions under which each string in the expression is UTF-8."""
    schema = _resolve(schema, names)
    if schema == "string":
        return [f"isValidUTF8({expression})"]
    if isinstance(schema, list) and _branch(schema) == "string":
        return [f"isValidUTF8(ifNull({expression}, ''))"]
    if not isinstance(schema, dict):
        return []
    if schema["type"] == "map":
        checks = [f"isValidUTF8(arrayStringConcat(mapKeys({expression})))"]
        if schema["values"] == "string":
            checks.append(f"isValidUTF8(arrayStringConcat(mapValues({expression})))")
        return checks
    if schema["type"] == "array":
        if schema["items"] == "string":
            return [f"isValidUTF8(arrayStringConcat({expression}))"]
        element = f"e{depth}"
        inner = _checks(element, schema["items"], names, depth + 1)
        return [f"arrayAll({element} -> {' AND '.join(inner)}, {expression})"] if inner else []
    if schema["type"] == "record":
        return [
            check
            for entry in schema["fields"]
            for check in _checks(f"{expression}.{entry['name']}", entry["type"], names, depth)
        ]
    return []


def _defaults(table: Table, newest: Schema) -> dict[str, str]:
    """For each column of the newest schema that may be absent from an older one, its default."""
    found: dict[str, str] = {}
    names = dict(_definitions(newest))
    for entry in newest["fields"]:
        kind = _resolve(entry["type"], names)
        if entry["name"] in table.flatten:
            inner = _resolve(_branch(kind), names) if isinstance(kind, list) else kind
            for sub in inner["fields"]:
                if "default" in sub:
                    column = table.flatten[entry["name"]] + sub["name"]
                    found[column] = _literal(sub["default"], _kind(sub["type"], names))
        elif entry["name"] not in table.omit and "default" in entry:
            items = _resolve(kind.get("items"), names) if isinstance(kind, dict) else None
            if isinstance(items, dict) and items["type"] == "record":
                for sub in items["fields"]:
                    found[f"{entry['name']}.{sub['name']}"] = "[]"
            else:
                found[entry["name"]] = _literal(entry["default"], _kind(kind, names))
    return found


def _literal(value: Any, kind: str) -> str:  # noqa: ANN401  a default in JSON
    if value is None:
        return "NULL"
    text = "map()" if value == {} else json.dumps(value) if not isinstance(value, str) else _quote(value)
    if isinstance(value, list):
        text = (
            "["
            + ", ".join(_quote(item) if isinstance(item, str) else json.dumps(item) for item in value)
            + "]"
        )
    return f"CAST({text}, {_quote(kind)})"


def _branch(union: list[Schema]) -> Schema:
    """The one type of a nullable field besides null."""
    (schema,) = (branch for branch in union if branch != "null")
    return schema


def _resolve(schema: Schema, names: dict[str, Schema]) -> Schema:
    if isinstance(schema, str) and schema not in _PRIMITIVES and schema != "null":
        return names[schema.rsplit(".", 1)[-1]]
    if isinstance(schema, dict) and set(schema) == {"type"}:
        return _resolve(schema["type"], names)
    return schema


def _definitions(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Each record defined within the schema, by its short name."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            yield schema["name"].rsplit(".", 1)[-1], schema
            for entry in schema["fields"]:
                yield from _definitions(entry["type"])
        else:
            for part in ("type", "items", "values"):
                yield from _definitions(schema.get(part))


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
