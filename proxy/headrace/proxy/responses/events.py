"""Events of a response's stream, numbered from 0."""

from collections.abc import Callable

import orjson

from headrace.proxy import sse
from headrace.proxy.dialect import Json

Tell = Callable[[str, Json], None]
"""Takes an event's type and its members. It is written down at once: what it holds may change afterwards."""


def untold(kind: str, members: Json) -> None:
    """For an answer in one piece, which has no events."""


class EventLog:
    def __init__(self) -> None:
        self._num_events = 0
        self._waiting: list[bytes] = []

    def tell(self, kind: str, members: Json) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._num_events, **members})
        self._num_events += 1
        self._waiting.append(sse.event(data, kind))

    def take(self) -> bytes:
        """What was told since the last time."""
        told = b"".join(self._waiting)
        self._waiting.clear()
        return told
