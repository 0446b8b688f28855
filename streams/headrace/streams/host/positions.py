"""Which offset comes next in each partition: what may be processed, and what may be committed.

A record is admitted only if it is the next one. Faust and aiokafka may hand over records from before a
seek, or move on past records that were fetched and dropped (aiokafka does not seek where nothing was
committed yet); going by this list, neither can lose a record or process one too early. Since whole runs
are processed in order, the next offset is also exactly what may be committed: no sets of acknowledged
offsets, no gaps in them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar


class TopicPartition(NamedTuple):
    """Equal to Faust's and aiokafka's own pairs."""

    topic: str
    partition: int


class HasOffset(Protocol):
    """A fetched record, as far as this module looks at it."""

    @property
    def offset(self) -> int: ...


R = TypeVar("R", bound=HasOffset)


class Positions:
    """Next offsets of the assigned source partitions; empty while there is no assignment."""

    def __init__(self) -> None:
        self._next: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._gaps: dict[tuple[str, int], int] = {}

    def __getitem__(self, tp: tuple[str, int]) -> int:
        return self._next[tp]

    def __contains__(self, tp: tuple[str, int]) -> bool:
        return tp in self._next

    def all(self) -> dict[tuple[str, int], int]:
        return dict(self._next)

    def reset(self, start: Mapping[tuple[str, int], int]) -> None:
        """Begin an assignment at these offsets: committed ones, or the first there are."""
        self._next = dict(start)
        self._committed = dict(start)
        self._gaps = {}

    def clear(self) -> None:
        self.reset({})

    def admit(self, tp: tuple[str, int], records: Sequence[R]) -> tuple[Sequence[R], int | None]:
        """Return the records to process, and the offset to seek to if some are missing before them.

        Records of partitions that are not assigned, and those before the next offset, are left out. A gap
        is believed when it is met again after seeking to its start, which must be done before the next
        fetch: then there is nothing in it (compaction, retention, transaction markers).
        """
        expected = self._next.get(tp)
        if expected is None or not records:
            return (), None
        if records[0].offset < expected:
            records = [record for record in records if record.offset >= expected]
            if not records:
                return (), None
        first = records[0].offset
        if first == expected or self._gaps.get(tp) == first:
            self._gaps.pop(tp, None)
            return records, None
        self._gaps[tp] = first
        return (), expected

    def dropped(self) -> None:
        """A fetch was thrown away: what it held may be what looks like a gap now."""
        self._gaps.clear()

    def advance(self, tp: tuple[str, int], next_offset: int) -> None:
        """Everything before the offset is processed: outputs acknowledged, state kept."""
        if tp in self._next:
            self._next[tp] = next_offset

    def committable(self) -> dict[tuple[str, int], int]:
        return {tp: offset for tp, offset in self._next.items() if offset > self._committed.get(tp, 0)}

    def committed(self, offsets: Mapping[tuple[str, int], int]) -> None:
        for tp, offset in offsets.items():
            if tp in self._committed:
                self._committed[tp] = max(offset, self._committed[tp])

    def committed_total(self) -> int:
        """Moves if and only if commits do; for the watchdog."""
        return sum(self._committed.values())
