"""Runs a processor over batches, one at a time, and keeps the order that nothing is lost in.

For each batch, in this order:

1. `handle` is called for each partition number, on an overlay of its state;
2. the outputs are sent, and every acknowledgement is awaited;
3. the changes are sent to the changelog, and every acknowledgement is awaited;
4. the changes and their changelog offset are written to RocksDB, in one write a partition;
5. the positions advance: only from here on may the offsets be committed.

An exception anywhere in between leaves the positions as they were, and ends the process. What was done
before it happens again after the restart: the same outputs, the same changes.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.schemas.errors import FatalError
from headrace.streams.host.lag import PartitionLag
from headrace.streams.host.metrics import HostMetrics
from headrace.streams.host.positions import Positions
from headrace.streams.processor import LogRecord, Output, Processor
from headrace.streams.state import Change, Overlay, Reader, ReadOnly


class Journal(Protocol):
    """What is written to Kafka. Both methods try again for as long as the broker can be expected back."""

    async def publish(self, outputs: Sequence[Output]) -> None:
        """Return when every output is acknowledged."""

    async def append(self, partition: int, changes: Sequence[Change]) -> int | None:
        """Return when every change is acknowledged: the changelog offset of the last, None if unknown."""


class Stores(Protocol):
    """The local files of the state."""

    def __getitem__(self, partition: int) -> Reader: ...

    def apply(self, partition: int, changes: Iterable[Change], offset: int | None) -> None: ...


class FetchedRecord(Protocol):
    """What aiokafka hands over."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Worker:
    """One processor in one process. `lock` is held while a batch or a tick is under way."""

    def __init__(
        self,
        processor: Processor,
        journal: Journal,
        stores: Stores,
        metrics: HostMetrics,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        session_timeout_s: float = math.inf,
    ) -> None:
        """`session_timeout_s`: one that was frozen for longer may have been replaced meanwhile."""
        self.lock = asyncio.Lock()
        self.positions = Positions()
        self.lags: dict[tuple[str, int], PartitionLag] = {}
        self._processor = processor
        self._journal = journal
        self._stores = stores
        self._metrics = metrics
        self._clock = clock
        self._assigned: set[int] = set()
        self._monotonic = monotonic
        self._session_timeout_s = session_timeout_s
        self._awake_at = monotonic()
        self._was_frozen = False
        self._appended: dict[int, int] = {}
        """By partition, where in the changelog the last change is that its state has."""

    @property
    def assigned(self) -> frozenset[int]:
        return frozenset(self._assigned)

    async def process(
        self, fetched: Mapping[tuple[str, int], Sequence[FetchedRecord]]
    ) -> dict[tuple[str, int], int]:
        """Process what is admitted of the fetched records; return the offsets to seek to before more is."""
        async with self.lock:
            began_s = time.monotonic()
            self._wake()
            rewinds: dict[tuple[str, int], int] = {}
            admitted: dict[tuple[str, int], Sequence[FetchedRecord]] = {}
            for tp, records in fetched.items():
                run, rewind = self.positions.admit(tp, records)
                if rewind is not None:
                    rewinds[tp] = rewind
                elif run:
                    admitted[tp] = run
            if admitted:
                await self._process(admitted)
                self._metrics.batch_seconds.observe(time.monotonic() - began_s)
            return rewinds

    async def tick(self) -> None:
        """Let the processor's clock act; nothing happens while no partition is assigned."""
        async with self.lock:
            self._wake()
            if self._assigned:
                await self._publish(self._processor.tick(int(self._clock() * 1000)))

    def assign(
        self,
        partitions: Iterable[int],
        start: Mapping[tuple[str, int], int],
        recovered: Mapping[int, int],
    ) -> None:
        """Begin with these partition numbers at these offsets.

        `recovered`: by partition, the changelog offset of the last change that its state has; -1 for none.
        """
        self.release()
        self._appended = dict(recovered)
        for partition in sorted(partitions):
            self._processor.assigned(partition, ReadOnly(self._stores[partition]))
            self._assigned.add(partition)
        self.positions.reset(start)
        self.lags = {tp: PartitionLag() for tp in start}
        self._metrics.partitions.set(len(self._assigned))

    def release(self) -> None:
        """End with every partition number: nothing more of them is processed or committed."""
        for partition in sorted(self._assigned):
            self._processor.revoked(partition)
        self._assigned.clear()
        self._appended.clear()
        self.positions.clear()
        self.lags = {}
        self._metrics.partitions.set(0)
        self._metrics.clear_lag()

    async def _process(self, admitted: Mapping[tuple[str, int], Sequence[FetchedRecord]]) -> None:
        outputs: list[Output] = []
        changes: dict[int, list[Change]] = {}
        for partition, records in _by_partition(admitted).items():
            overlay = Overlay(self._stores[partition])
            outputs += self._processor.handle(partition, records, overlay)
            changed = overlay.changes()
            if changed:
                changes[partition] = changed
            self._metrics.batch_records.observe(len(records))
            await asyncio.sleep(0)
        await self._publish(outputs)
        await self._keep(changes)
        for (topic, partition), run in admitted.items():
            self.positions.advance((topic, partition), run[-1].offset + 1)
            self.lags[topic, partition].processed(run[-1].timestamp)
            self._metrics.count_records(topic, len(run))

    async def _keep(self, changes: Mapping[int, Sequence[Change]]) -> None:
        offsets = await asyncio.gather(*(self._journal.append(p, changed) for p, changed in changes.items()))
        for (partition, changed), offset in zip(changes.items(), offsets, strict=True):
            self._check_alone(partition, len(changed), offset)
            self._stores.apply(partition, changed, offset)
            self._metrics.changes.inc(len(changed))

    def _wake(self) -> None:
        """The clock's tick comes twice a second: what is longer than a session between two was no work."""
        now = self._monotonic()
        self._was_frozen = self._was_frozen or now - self._awake_at > self._session_timeout_s
        self._awake_at = now

    def _check_alone(self, partition: int, num_changes: int, offset: int | None) -> None:
        """FatalError if this process was frozen, and another has written to the changelog meanwhile.

        Its state lacks what the other wrote, and must not be kept under an offset that says otherwise. The
        other, whose changes are interrupted by ours, goes on.
        """
        self._wake()
        before = self._appended.pop(partition, None)
        if offset is None:
            return
        # One that was frozen once is suspect from then on, whichever way its partitions came back to it.
        if self._was_frozen and before is not None and offset != before + num_changes:
            raise FatalError(
                f"another process has taken over partition {partition} of {self._processor.name} meanwhile: "
                "this one ends, and recovers its state when it is started again"
            )
        self._appended[partition] = offset

    async def _publish(self, outputs: Sequence[Output]) -> None:
        if not outputs:
            return
        await self._journal.publish(outputs)
        counts: dict[str, int] = {}
        for output in outputs:
            counts[output.topic] = counts.get(output.topic, 0) + 1
        for topic, num in counts.items():
            self._metrics.count_output(topic, num)


def _by_partition(
    admitted: Mapping[tuple[str, int], Sequence[FetchedRecord]],
) -> dict[int, list[LogRecord]]:
    grouped: dict[int, list[LogRecord]] = {}
    for (_, partition), run in admitted.items():
        grouped.setdefault(partition, []).extend(
            LogRecord(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
            for r in run
        )
    return grouped
