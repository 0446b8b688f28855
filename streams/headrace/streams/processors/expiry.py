"""Marks that outlive every redelivery and are forgotten after that, by the log's own time.

A mark says that something is finished. It is written with the log's time beside it, so that the oldest
are found first, a few at a time, while records are handled.
"""

from collections.abc import Sequence

from headrace.streams.processor import LogRecord, State

_MARK = b"f"
_BY_TIME = b"e"
_SWEEP_EVERY_MS = 60_000
_SWEEP_LIMIT = 2000


class FinishedMarks:
    """Keys are ids; `retention_s` is longer than the topics keep the records that could bring them back."""

    def __init__(self, retention_s: float) -> None:
        self._retention_ms = int(retention_s * 1000)
        self._swept_at: dict[int, int] = {}

    def is_set(self, key: bytes, state: State) -> bool:
        return self.get(key, state) is not None

    def get(self, key: bytes, state: State) -> bytes | None:
        """What was said with the mark; None where there is none."""
        return state.get(_MARK + key)

    def set(self, key: bytes, time_ms: int, state: State, *, also: bytes = b"", value: bytes = b"") -> None:
        """Mark the key from this moment of the log on; the key `also` is deleted when the mark is."""
        state.put(_MARK + key, value)
        state.put(_BY_TIME + max(time_ms, 0).to_bytes(8, "big") + key, also)

    def sweep(self, partition: int, records: Sequence[LogRecord], state: State) -> int:
        """Forget what is past redelivery at the time of these records; how many marks that were."""
        now_ms = max((record.timestamp_ms for record in records), default=0)
        if now_ms < self._swept_at.get(partition, 0) + _SWEEP_EVERY_MS:
            return 0
        self._swept_at[partition] = now_ms
        horizon_ms = now_ms - self._retention_ms
        old: list[tuple[bytes, bytes]] = []
        for key, also in state.scan(_BY_TIME):
            if len(old) == _SWEEP_LIMIT or int.from_bytes(key[1:9], "big") >= horizon_ms:
                break
            old.append((key, also))
        for key, also in old:
            state.delete(key)
            state.delete(_MARK + key[9:])
            if also:
                state.delete(also)
        return len(old)

    def revoked(self, partition: int) -> None:
        self._swept_at.pop(partition, None)
