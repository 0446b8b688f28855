"""Lag of a consumer in records and in seconds, and a watchdog on its progress. Pure; clocks are passed in.

Seconds of lag are the age of the oldest record not processed yet. Its time is known once it is fetched, so
until then it is bounded from the observations of the log's end: a record is no older than the moment at
which the end was first seen behind it. For what was there at the start, the time of the last record
processed stands in.
"""

from collections import deque

_MAX_SAMPLES = 4096


class PartitionLag:
    """Of one partition."""

    def __init__(self) -> None:
        self.records = 0
        self._start_end: int | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=_MAX_SAMPLES)
        self._start_s = 0.0
        self._last_record_s: float | None = None

    def processed(self, timestamp_ms: int) -> None:
        self._last_record_s = timestamp_ms / 1000

    def observe(self, now_s: float, next_offset: int, end_offset: int) -> float:
        """Take an observation of the log's end and return the lag in seconds; `records` is set too."""
        if self._start_end is None:
            self._start_end, self._start_s = end_offset, now_s
        elif end_offset > (self._samples[-1][1] if self._samples else self._start_end):
            self._samples.append((now_s, end_offset))
        self.records = max(0, end_offset - next_offset)
        if not self.records:
            self._samples.clear()
            self._start_end = end_offset
            return 0.0
        if next_offset < self._start_end:
            since = self._start_s if self._last_record_s is None else self._last_record_s
            return max(0.0, now_s - since)
        while self._samples and self._samples[0][1] <= next_offset:
            self._samples.popleft()
        return max(0.0, now_s - self._samples[0][0]) if self._samples else 0.0


class Watchdog:
    """Says when a consumer has had work and made no progress for too long."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._since_s = now_s
        self._mark: object = None

    def idle_s(self, now_s: float, *, pending: bool, mark: object) -> float:
        """Return for how long there was work and `mark` (commits, recovery, rebalances) did not change."""
        if not pending or mark != self._mark:
            self._since_s, self._mark = now_s, mark
        return now_s - self._since_s

    def bites(self, now_s: float, *, pending: bool, mark: object) -> bool:
        return self.idle_s(now_s, pending=pending, mark=mark) > self._limit_s
