"""Digest: a hash over what records say, whatever bytes carry them.

Fields at their defaults are left out, so that one which a later schema version brings changes nothing for the
records that do not use it.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.schemas.records.base import Part

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_Update = Callable[[bytes], object]


def content_digest(parts: Iterable[Part]) -> str:
    """SHA-256 in hex over the parts in their order."""
    digest = hashlib.sha256()
    for part in parts:
        _add(digest.update, part)
    return digest.hexdigest()


def _add(update: _Update, value: Any) -> None:  # noqa: ANN401  whatever a field holds
    """Each value with its type and length before it, so that no two contents have the same bytes."""
    if isinstance(value, Part):
        update(b"{")
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            if field.is_required() or inner != field.default:
                _add_text(update, name)
                _add(update, inner)
        update(b"}")
    elif isinstance(value, tuple):
        _add_tuple(update, value)
    elif isinstance(value, dict):
        update(struct.pack("<cq", b"m", len(value)))
        for key, inner in sorted(value.items()):
            _add_text(update, key)
            _add(update, inner)
    else:
        _add_scalar(update, value)


def _add_tuple(update: _Update, values: tuple[Any, ...]) -> None:
    """Token ids and logprobs are packed at once: they are most of a trajectory."""
    kinds = set(map(type, values))
    if kinds == {int}:
        update(struct.pack(f"<cq{len(values)}q", b"I", len(values), *values))
    elif kinds == {float}:
        update(struct.pack(f"<cq{len(values)}d", b"F", len(values), *values))
    else:
        update(struct.pack("<cq", b"t", len(values)))
        for value in values:
            _add(update, value)


def _add_scalar(update: _Update, value: object) -> None:
    if value is None:
        update(b"n")
    elif isinstance(value, bool):
        update(b"1" if value else b"0")
    elif isinstance(value, int):
        update(struct.pack("<cq", b"i", value))
    elif isinstance(value, float):
        update(struct.pack("<cd", b"f", value))
    elif isinstance(value, str):
        _add_text(update, value)
    elif isinstance(value, bytes):
        update(struct.pack("<cq", b"b", len(value)) + value)
    elif isinstance(value, datetime):
        update(struct.pack("<cq", b"d", (value - _EPOCH) // _MICROSECOND))
    else:
        raise TypeError(f"no digest of {type(value).__name__}")


def _add_text(update: _Update, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    update(struct.pack("<cq", b"s", len(data)) + data)
