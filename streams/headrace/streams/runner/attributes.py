"""Attribute values of any kind as the strings that a Span holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.streams.ingest.any_value import Value, as_string


def attribute_strings(attributes: Mapping[str, Any]) -> dict[str, str]:
    """By OpenTelemetry's rule (ingest.any_value); what it has no rule for, as `str` gives it."""
    return {whole_text(str(key)): whole_text(as_string(_value(value))) for key, value in attributes.items()}


def whole_text(text: str) -> str:
    """The text with half surrogate pairs replaced: a model cut off within an emoji gives such, Avro can't."""
    if text.isascii():
        return text
    return text.encode(errors="replace").decode() if _is_broken(text) else text


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _value(value: Any) -> Value:  # noqa: ANN401  what a caller sets
    if value is None or isinstance(value, str | bool | int | float | bytes):
        return value
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_value(item) for item in value]
    return str(value)
