"""What a stream processor is, apart from the engine that runs it.

A processor is pure: records and state in, outputs and state changes out. The host that runs it keeps
the guarantees around it: outputs are acknowledged before the state changes are written, the changelog
of those changes is acknowledged before the records' offsets may be committed (G5, G8), and one
partition number is handled by one process at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class LogRecord(NamedTuple):
    """One record as Kafka gave it. `timestamp_ms` is the broker's or the producer's, for lag only."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Output(NamedTuple):
    """A record to publish. With `partition` None the key chooses it, by murmur2 as in Kafka's clients."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None


class State(Protocol):
    """The state of one partition number: an ordered map of bytes.

    What a `handle` call writes is seen at once by its own reads, and kept only after its outputs are
    acknowledged; a crash before that leaves the state as it was before the call.
    """

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None:
        """Remove the key; no error where it is absent."""

    def scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with the prefix in byte order of keys, from `start` on if given.

        The state must not be written to while the iterator is in use.
        """


class Processor(Protocol):
    """Decides from records and state alone; never reads a clock, never does I/O."""

    @property
    def name(self) -> str:
        """Of the consumer group, the state table and the metrics."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What became of records, by a short word: for metrics."""

    @property
    def topics(self) -> Sequence[str]:
        """Full topic names; all have the same number of partitions, and keys agree across them."""

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        """Take records of one partition number, each topic's in offset order; may see them again.

        Bad records become dead-letter outputs. An exception is a bug and stops the worker.
        """

    def tick(self, now_ms: int) -> list[Output]:
        """Called about twice a second, with or without traffic; may emit events, never changes state."""

    def assigned(self, partition: int, state: State) -> None:
        """The partition is now this process's, its state recovered: rebuild what is kept in memory."""

    def revoked(self, partition: int) -> None:
        """The partition went elsewhere: drop what is kept in memory for it."""
