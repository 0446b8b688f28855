"""BatchConsumer: finalized batches for a trainer, each once, with offsets that belong into its checkpoint.

    with BatchConsumer(KafkaSettings()) as batches:
        batches.seek(checkpoint_offsets)
        for batch in batches:
            train(batch)
            save(weights, batch.offsets)  # together: a resumed run trains each batch exactly once (G5)

It joins no consumer group and commits nothing: any number of trainers read the same batches, each by its own
checkpoint. A batch that the log has twice, since the batcher was killed, is given once, also when a restart
lies between.
"""

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

import structlog
from confluent_kafka import KafkaException

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, HeadraceError, RetryableError
from headrace.schemas.records import BatchShard, Trajectory
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import group_lag
from headrace.streams.client.batch import BadBatchError, Batch, BatchGroup
from headrace.streams.client.batch_assembly import BatchAssembly
from headrace.streams.client.tail import Place, Tail, Tailed
from headrace.streams.settings import KafkaSettings
from headrace.streams.topology import BATCHER

__all__ = ["BadBatchError", "Batch", "BatchConsumer", "BatchGroup", "BatchTimeoutError"]

Start = Literal["earliest", "latest"]

_POLL_S = 0.5
_SAY_EVERY_S = 60.0
_FETCH_WAIT_MS = 100

log = structlog.get_logger(__name__)


class BatchTimeoutError(RetryableError):
    """No batch came in time; the message says what is waited for (C14)."""


class BatchConsumer:
    """An iterator, for one thread at a time. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        start: Start | Mapping[str, int] = "earliest",
        codec: Codec | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`start` is where it begins unless `seek` says otherwise: at an end of the log, or at offsets.

        `timeout_s` is of iteration: BatchTimeoutError when no batch came for so long. None waits for ever,
        and logs now and then what for.
        """
        self.settings = settings
        self._start = start
        self._codec = codec or Codec()
        self._timeout_s = timeout_s
        self._topic = topic_name(BatchShard, settings.topic_prefix)
        self._assembly = BatchAssembly(self._topic, topic_name(Trajectory, settings.topic_prefix))
        self._tail = Tail(settings, name="batches", fetch_wait_ms=_FETCH_WAIT_MS)
        self._fetched: deque[Tailed] = deque()
        self._has_begun = False

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Go on right after the batch that had these `offsets`; with none, from where it starts.

        Offsets of trajectories alone tell repeats, in all that the log still has. BadBatchError where the
        log does not have, or no longer has, what follows.
        """
        self._fetched.clear()
        if not offsets:
            if not isinstance(self._start, str):
                offsets = self._start
            elif self._start == "latest":
                positions = {place.partition: at for place, at in self._tail.ends(self._places()).items()}
                self._begin(positions, {})
                return
        positions, done = self._assembly.parse(offsets)
        self._begin(positions, done)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self.next(self._timeout_s)

    def next(self, timeout_s: float | None = None) -> Batch:
        """The next batch, once it is there. BatchTimeoutError after so long; None waits for ever.

        BadBatchError for one that is corrupt or lacks shards: going on after that leaves it out.
        """
        began = time.monotonic()
        while True:
            passed_s = time.monotonic() - began
            left_s = _SAY_EVERY_S if timeout_s is None else timeout_s - passed_s
            batch = self.poll(min(max(left_s, 0.0), _SAY_EVERY_S))
            if batch is not None:
                return batch
            passed_s = time.monotonic() - began
            if timeout_s is not None and passed_s >= timeout_s:
                raise BatchTimeoutError(f"no batch in {passed_s:.0f} s: {self.waiting_for()}")
            log.info("waiting for a batch", passed_s=round(passed_s), waiting_for=self.waiting_for())

    def poll(self, timeout_s: float) -> Batch | None:
        """As `next`, with None where no batch came in time."""
        if not self._has_begun:
            self.seek({})
        deadline = time.monotonic() + timeout_s
        while True:
            while self._fetched:
                # It stays until it is done with: what follows a bad batch must not go with it.
                batch = self._take(self._fetched[0])
                self._fetched.popleft()
                if batch is not None:
                    return batch
            left_s = deadline - time.monotonic()
            self._fetched.extend(self._tail.poll(min(max(left_s, 0.0), _POLL_S)))
            if left_s <= 0 and not self._fetched:
                return None

    @property
    def offsets(self) -> dict[str, int]:
        """Where reading goes on after the last batch that was given."""
        return self._assembly.offsets

    @property
    def num_repeats(self) -> int:
        """Shards left out since the last `seek`: their batches had been given."""
        return self._assembly.num_repeats

    def waiting_for(self) -> str:
        """What must come before there is a batch, with numbers; for people."""
        words = [f"{self._topic} is read up to {self._assembly.positions}"]
        words += [
            f"batch {batch_id} has {num} of {total} shards"
            for batch_id, (num, total) in self._assembly.incomplete().items()
        ]
        prefix = self.settings.topic_prefix
        try:
            behind = sum(group_lag(self.settings, BATCHER.group(prefix), BATCHER.topics(prefix)).values())
        except (HeadraceError, KafkaException) as error:
            return "; ".join([*words, f"Kafka does not say how far the batcher is: {error}"])
        if behind:
            words.append(f"the batcher has {behind} records of trajectories to handle: does it run?")
        else:
            words.append("the batcher has handled all trajectories: it waits for groups to be whole")
        return "; ".join(words)

    def close(self) -> None:
        self._tail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _places(self) -> list[Place]:
        return self._tail.places(self._topic)

    def _begin(self, positions: Mapping[int, int], done: Mapping[int, int]) -> None:
        places = self._places()
        beginnings, ends = self._tail.beginnings(places), self._tail.ends(places)
        starts: dict[Place, int] = {}
        for place in places:
            at = starts[place] = positions.get(place.partition, beginnings[place])
            if not beginnings[place] <= at <= ends[place]:
                raise BadBatchError(
                    f"{self._topic}:{place.partition} has records from {beginnings[place]} to {ends[place]}, "
                    f"and {at} is asked for: the offsets are of another log, or its retention was too short. "
                    "Seek with the offsets of trajectories alone to read all that there is"
                )
        self._assembly.reset({place.partition: at for place, at in starts.items()}, done)
        self._tail.move(starts)
        self._has_begun = True

    def _take(self, record: Tailed) -> Batch | None:
        if record.at_end:
            return None
        try:
            shard = self._codec.decode(record.value, BatchShard)
        except BadRecordError as error:
            # Were it a shard, its batch would lack one, and that is noticed.
            place = f"{self._topic}:{record.place.partition}:{record.offset}"
            log.warning("not a shard of a batch", place=place, reason=str(error))
            self._assembly.pass_by(record.place.partition, record.offset)
            return None
        return self._assembly.take(record.place.partition, record.offset, shard)
