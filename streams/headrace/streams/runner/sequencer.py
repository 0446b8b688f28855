"""Sequencer: the one place that hands out an attempt's sequence ids (G2)."""

import threading
from typing import NamedTuple, Protocol

from headrace.schemas.records import AttemptTask


class Opened(NamedTuple):
    """What opening an attempt gives its agent: where its model is, if that is known."""

    base_url: str | None = None
    api_key: str | None = None


class Closed(NamedTuple):
    last_sequence_id: int | None
    """The last id handed out, to anyone; None if that can't be known any more."""
    failure: str | None = None
    """What others that number events of this attempt did not get recorded, in words."""


class Sequencer(Protocol):
    """Of one attempt. Ids are 1, 2, 3 …, each handed out once, whoever asks from whichever thread."""

    @property
    def is_shared(self) -> bool:
        """Others take ids too: `next` may take a while, and `last` is what is known here."""

    async def open(self, task: AttemptTask, attempt_id: str) -> Opened:
        """Before the first id. HeadraceError if there can be none. May be cancelled."""

    def next(self) -> int:
        """The next id; it is accounted for from now on.

        AttemptClosedError after the end; HeadraceError if none was handed out, or one that nobody heard of:
        then `failure` says so.
        """

    @property
    def last(self) -> int:
        """The highest id handed out, 0 for none."""

    @property
    def failure(self) -> str | None:
        """Why ids can be missing, in words."""

    async def close(self) -> Closed:
        """Hand out no more. Called once, at the end of every attempt, opened or not."""


class LocalSequencer:
    """For an attempt whose every event comes through this process."""

    is_shared = False
    failure = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    async def open(self, task: AttemptTask, attempt_id: str) -> Opened:  # noqa: ARG002
        return Opened()

    def next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    @property
    def last(self) -> int:
        return self._last

    async def close(self) -> Closed:
        return Closed(self._last)
