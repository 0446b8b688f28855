"""The records of one partition that are read and not yet in ClickHouse. Pure."""

from collections import deque

from headrace.streams.processor import LogRecord


class PartitionBuffer:
    """Cuts batches. After a takeover the first is the range that the one before had announced, exactly."""

    def __init__(self, *, committed: int | None = None, replay_last: int | None = None) -> None:
        self._records: deque[LogRecord] = deque()
        self._num_bytes = 0
        self.last_timestamp_ms = 0
        self.replay_last = replay_last
        self.committed = committed
        """The offset that Kafka has, as far as this process knows."""
        self.done: int | None = None
        """The next offset after what is in ClickHouse, where Kafka does not have it yet."""

    def __len__(self) -> int:
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def add(self, record: LogRecord) -> None:
        self._records.append(record)
        self.last_timestamp_ms = record.timestamp_ms
        self._num_bytes += len(record.value or b"")

    def cut(self, max_rows: int) -> list[LogRecord]:
        """The next batch; empty while the announced range is not read to its end.

        A compacted or expired record of the range does not hold it up: a later offset proves that the
        range has been read.
        """
        if not self._records:
            return []
        limit = max_rows
        if self.replay_last is not None:
            if self._records[-1].offset < self.replay_last:
                return []
            limit = sum(1 for record in self._records if record.offset <= self.replay_last)
            if limit == 0:
                self.replay_last = None
                limit = max_rows
        batch = [self._records.popleft() for _ in range(min(limit, len(self._records)))]
        self._num_bytes -= sum(len(record.value or b"") for record in batch)
        return batch

    def written(self, last: int) -> None:
        """The batch that ends with this offset is in ClickHouse."""
        self.done = last + 1
        self.replay_last = None
