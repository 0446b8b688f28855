"""Reads protobuf's JSON mapping as OTLP uses it.

Names in lowerCamelCase, or as in the .proto file; null is absent; 64-bit integers as strings or numbers;
enums as numbers or names. Unknown fields are passed over, as the mapping wants it.
"""

import base64
import binascii
import math
import re
from typing import Any

from headrace.streams.ingest.bad_input import MalformedError

_CAPITAL = re.compile(r"[A-Z]")
_HEX = re.compile(r"[0-9a-f]+")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_INT64 = range(-(2**63), 2**63)


class Message:
    """A protobuf message in JSON, and where it is, for messages about it."""

    __slots__ = ("path", "values")

    def __init__(self, value: Any, path: str) -> None:  # noqa: ANN401  JSON
        if not isinstance(value, dict):
            raise MalformedError("invalid", f"{path}: an object is expected")
        self.values: dict[str, Any] = value
        self.path = path

    def get(self, name: str) -> Any:  # noqa: ANN401  JSON
        """The field by its lowerCamelCase name, however it is spelled here; None where absent."""
        value = self.values.get(name)
        return self.values.get(snake_case(name)) if value is None else value

    def where(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def message(self, name: str) -> "Message":
        """The message in this field, empty where absent."""
        value = self.get(name)
        return Message({} if value is None else value, self.where(name))

    def items(self, name: str) -> list[Any]:
        """The values of a repeated field."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise MalformedError("invalid", f"{self.where(name)}: a list is expected")
        return value

    def messages(self, name: str) -> list["Message"]:
        return [Message(value, f"{self.where(name)}[{at}]") for at, value in enumerate(self.items(name))]

    def text(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise MalformedError("invalid", f"{self.where(name)}: a string is expected")
        if not value.isascii():
            _check_utf8(value, self.where(name))
        return value

    def int64(self, name: str) -> int:
        """0 where absent."""
        value = self.get(name)
        return 0 if value is None else to_int64(value, self.where(name))

    def enum(self, name: str, prefix: str, names: tuple[str, ...]) -> str:
        """The name of an enum's value, without its prefix and in lower case; the first where absent."""
        value = self.get(name)
        if value is None:
            return names[0]
        if isinstance(value, str) and value.removeprefix(prefix).lower() in names:
            return value.removeprefix(prefix).lower()
        number = to_int64(value, self.where(name))
        if number not in range(len(names)):
            raise MalformedError("invalid", f"{self.where(name)}: {number} is not in the enum")
        return names[number]

    def hex_id(self, name: str, num_bytes: int) -> str:
        """An id in lower-case hex; empty where absent or all zero.

        OTLP wants hex. Exporters that use protobuf's own mapping send base64, which differs in length.
        """
        text = self.text(name)
        if len(text) == -(-num_bytes // 3) * 4:
            try:
                text = base64.b64decode(text, validate=True).hex()
            except binascii.Error:
                text = "?"
        text = text.lower()
        if text and not (len(text) == 2 * num_bytes and _HEX.fullmatch(text)):
            raise MalformedError("invalid", f"{self.where(name)}: {2 * num_bytes} hex digits are expected")
        return text if text.strip("0") else ""


def _check_utf8(value: str, where: str) -> None:
    """JSON can escape half a surrogate pair, and Avro can't hold it."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedError("invalid", f"{where}: half a surrogate pair") from error


def snake_case(name: str) -> str:
    return _CAPITAL.sub(lambda capital: "_" + capital.group().lower(), name)


def to_int64(value: Any, where: str) -> int:  # noqa: ANN401  JSON
    if (isinstance(value, str) and _INTEGER.fullmatch(value)) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT64:
        raise MalformedError("invalid", f"{where}: a 64-bit integer is expected")
    return value


def to_double(value: Any, where: str) -> float:  # noqa: ANN401  JSON
    """NaN and infinities are the strings that protobuf has for them."""
    try:
        if isinstance(value, str):
            number = float(value)
            if math.isfinite(number) or value in {"NaN", "Infinity", "-Infinity"}:
                return number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise MalformedError("invalid", f"{where}: a number is expected")
