"""Server-sent events, as far as model APIs use them: events in from bytes, and out.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import re

from headrace.schemas.errors import BadRecordError

MAX_EVENT_BYTES = 16 * 1024 * 1024

_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventTooLargeError(BadRecordError):
    """An event without an end."""


class EventReader:
    """Bytes in pieces of any size, data of whole events out."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = b""
        self._max_event_bytes = max_event_bytes

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of each event that is whole by now; EventTooLargeError. Comments have none."""
        parts = _BLANK.split(self._rest + piece)
        self._rest = parts.pop()
        if len(self._rest) > self._max_event_bytes:
            raise EventTooLargeError(f"an event has over {self._max_event_bytes} bytes")
        return [data for part in parts if (data := _data(part)) is not None]

    @property
    def is_between(self) -> bool:
        """Nothing of an event that is not whole has come."""
        return not self._rest.strip()


def event(data: bytes, name: str | None = None) -> bytes:
    """One event; `data` is JSON, so without line ends."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = []
    for line in block.splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
