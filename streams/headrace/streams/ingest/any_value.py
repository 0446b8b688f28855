"""OTLP's attribute values as strings.

By OpenTelemetry's rule for protocols without AnyValue (specification, common, "AnyValue representation
for non-OTLP protocols"): strings as they are; booleans and numbers as JSON, with NaN, Infinity and
-Infinity bare; bytes in base64; nothing as the empty string; arrays and maps as JSON, with strings,
bytes and special numbers quoted in them, and nothing as null.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable
from typing import Any

from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.proto_json import Message, to_double, to_int64

Value = None | str | bool | int | float | bytes | list["Value"] | dict[str, "Value"]


def read_value(message: Message) -> Value:
    """The value of an AnyValue message. MalformedError for two values at once or a type nobody knows."""
    present = [name for name in _READERS if message.get(name) is not None]
    if not present:
        if any(value is not None for value in message.values.values()):
            raise MalformedError("invalid", f"{message.path}: a value of unknown type")
        return None
    if len(present) > 1:
        raise MalformedError("invalid", f"{message.path}: both {present[0]} and {present[1]}")
    return _READERS[present[0]](message, present[0])


def as_string(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _special(value)
    return json.dumps(_within(value), ensure_ascii=False, separators=(",", ":"))


def read_attributes(message: Message, name: str = "attributes") -> dict[str, str]:
    """Attributes by key; of two with the same key the last counts, as where they are set."""
    return {key: as_string(value) for key, value in _read_pairs(message, name).items()}


def _read_pairs(message: Message, name: str) -> dict[str, Value]:
    pairs: dict[str, Value] = {}
    for pair in message.messages(name):
        key = pair.text("key")
        if not key and name == "attributes":
            raise MalformedError("invalid", f"{pair.path}: no key")
        pairs[key] = read_value(pair.message("value"))
    return pairs


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _within(value: Value) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, list):
        return [_within(item) for item in value]
    if isinstance(value, dict):
        return {key: _within(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return _special(value)
    return value


def _read_bool(message: Message, name: str) -> bool:
    value = message.get(name)
    if not isinstance(value, bool):
        raise MalformedError("invalid", f"{message.where(name)}: true or false is expected")
    return value


def _read_bytes(message: Message, name: str) -> bytes:
    text = message.text(name).replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise MalformedError("invalid", f"{message.where(name)}: not base64") from error


def _read_array(message: Message, name: str) -> list[Value]:
    return [read_value(item) for item in message.message(name).messages("values")]


_READERS: dict[str, Callable[[Message, str], Value]] = {
    "stringValue": Message.text,
    "boolValue": _read_bool,
    "intValue": lambda message, name: to_int64(message.get(name), message.where(name)),
    "doubleValue": lambda message, name: to_double(message.get(name), message.where(name)),
    "arrayValue": _read_array,
    "kvlistValue": lambda message, name: _read_pairs(message.message(name), "values"),
    "bytesValue": _read_bytes,
}
