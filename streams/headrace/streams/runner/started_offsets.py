"""StartedOffsets: up to where each partition's tasks have all been started, so that it may be committed."""

import threading
from collections.abc import Iterable


class StartedOffsets:
    """Offsets of a partition are taken in ascending order, and started in any. Any thread may call."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: dict[int, dict[int, None]] = {}
        """Of each partition those not started, in order."""
        self._next: dict[int, int] = {}

    def take(self, partition: int, offset: int) -> None:
        with self._changed:
            self._taken.setdefault(partition, {})[offset] = None
            self._next[partition] = offset + 1

    def start(self, partition: int, offset: int) -> None:
        """The log has it; of a partition that is forgotten this is no news."""
        with self._changed:
            self._taken.get(partition, {}).pop(offset, None)
            self._changed.notify_all()

    def committable(self) -> dict[int, int]:
        """By partition, the lowest offset not started."""
        with self._changed:
            return {
                partition: next(iter(self._taken.get(partition, ())), behind)
                for partition, behind in self._next.items()
            }

    def wait(self, partitions: Iterable[int], timeout_s: float) -> bool:
        """Wait until all that was taken of these is started; False after the time-out."""
        wanted = set(partitions)
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(self._taken.get(partition) for partition in wanted), timeout_s
            )

    def forget(self, partitions: Iterable[int]) -> None:
        """They went to another runner."""
        with self._changed:
            for partition in partitions:
                self._taken.pop(partition, None)
                self._next.pop(partition, None)
