"""JSON as RFC 8259 has it, without NaN; all that is wrong with a text is a MalformedError."""

import json
from typing import Any, NamedTuple, NoReturn

from headrace.streams.ingest.bad_input import MalformedError

_SPACE = " \t\n\r"


class Member(NamedTuple):
    """A member of an object: its value, and its text as it was written."""

    value: Any
    text: str


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MalformedError("not_utf8", f"byte {error.start} is not UTF-8") from error


def parse(text: str) -> Any:  # noqa: ANN401  the edge of the codec
    """The value of a whole text."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(error) from error


def members(text: str) -> dict[str, Member]:
    """The members of the one object that a text holds, with their text untouched.

    Written again, numbers and escapes could change: what was recorded is kept as it was.
    """
    try:
        return _members(text)
    except (ValueError, IndexError, RecursionError) as error:
        raise _not_json(error) from error


def _members(text: str) -> dict[str, Member]:
    at = _skip(text, 0)
    if text[at] != "{":
        raise ValueError("not an object")
    found: dict[str, Member] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        if found:
            at = _expect(text, at, ",")
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str) or name in found:
            raise ValueError("a name in the object is no string, or stands twice")
        start = _expect(text, _skip(text, at), ":")
        value, end = _DECODER.raw_decode(text, start)
        found[name] = Member(value, text[start:end])
        at = _skip(text, end)
    if _skip(text, at + 1) != len(text):
        raise ValueError(f"more text after the object, at character {at + 1}")
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: str, at: int, mark: str) -> int:
    if text[at] != mark:
        raise ValueError(f"{mark!r} expected at character {at}")
    return _skip(text, at + 1)


def _not_json(error: Exception) -> MalformedError:
    if isinstance(error, RecursionError):
        return MalformedError("not_json", "nested too deeply")
    if isinstance(error, IndexError):
        return MalformedError("not_json", "the text ends within an object")
    return MalformedError("not_json", str(error))
