"""Sequencer: the one place that hands out an attempt's sequence ids (G2)."""

import threading
from typing import Protocol


class Sequencer(Protocol):
    """Ids are 1, 2, 3 …, each handed out once, whoever asks from whichever thread."""

    def next(self) -> int:
        """The next id; it is accounted for from now on."""

    @property
    def last(self) -> int:
        """The highest id handed out, 0 for none."""


class LocalSequencer:
    """For an attempt whose every event comes through this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    @property
    def last(self) -> int:
        return self._last
