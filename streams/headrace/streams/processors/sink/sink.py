"""The sink's process: reads every topic, writes batches, commits what ClickHouse has acknowledged.

The loop, in this order (G5, G8, C8, C10, C11):
1. read until a batch is due;
2. one commit: progress so far, and for each batch the range that is about to be inserted;
3. insert; while ClickHouse or Kafka does not answer, reading is paused and the same batches are tried
   again, with Kafka as the buffer;
4. dead letters acknowledged; the batches count as progress.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.schemas.errors import FatalError, RetryableError
from headrace.schemas.records import DeadLetter
from headrace.schemas.topics import TopicSpec, topic_specs
from headrace.streams.client.publisher import MAX_RECORD_BYTES, Publisher
from headrace.streams.processor import LogRecord
from headrace.streams.processors.sink import intent, metrics
from headrace.streams.processors.sink.buffer import PartitionBuffer
from headrace.streams.processors.sink.settings import SinkSettings
from headrace.streams.processors.sink.tables import TABLES
from headrace.streams.processors.sink.writer import Batch, ClickHouseWriter
from headrace.streams.settings import KafkaSettings
from headrace.streams.topology import SINK

Place = tuple[str, int]

_READ = 10_000
_IDLE_S = 0.25
_MAX_BACKOFF_S = 5.0

log = structlog.get_logger("headrace.sink")


def sink_topics(prefix: str) -> dict[str, TopicSpec]:
    """Full names of the topics that the sink reads."""
    return {topic_specs()[name].full_name(prefix): topic_specs()[name] for name in TABLES}


class Sink:
    """One member of the consumer group. `run` returns when `stop` is set, or raises FatalError."""

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: SinkSettings,
        new_writer: Callable[[], ClickHouseWriter],
        publisher: Publisher,
    ) -> None:
        self._settings = settings
        self._new_writer = new_writer
        self._local = threading.local()
        self._publisher = publisher
        self._topics = sink_topics(kafka.topic_prefix)
        self._buffers: dict[Place, PartitionBuffer] = {}
        self._assignment = 0
        """Goes up with every rebalance: what was cut before belongs to whoever comes next."""
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "client.id": "headrace-sink",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.min.bytes": 1,
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": MAX_RECORD_BYTES + 65_536,
                "queued.max.messages.kbytes": 64 * 1024,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 2_000,
                "max.poll.interval.ms": 600_000,
            }
            | kafka.librdkafka()
            | {"group.id": SINK.group(kafka.topic_prefix)}
        )

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        self._consumer.subscribe(
            list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        with ThreadPoolExecutor(self._settings.num_writers, "headrace-sink") as pool:
            try:
                while not stop.is_set():
                    self._read()
                    batches = self._cut()
                    if self._commit(batches) and batches:
                        self._write(pool, batches)
                    self._measure()
                self._commit([])
            finally:
                self._consumer.close()

    # --- reading -------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read until a batch is due: enough rows, or the first of them has waited long enough."""
        due: float | None = None
        if any(len(buffer) for buffer in self._buffers.values()):
            due = time.monotonic() + self._settings.linger_s
        idle_until = time.monotonic() + self._settings.commit_interval_s
        while not self._stop.is_set():
            now = time.monotonic()
            if due is not None and now >= due:
                return
            if due is None and now >= idle_until:
                return
            until = due if due is not None else min(idle_until, now + _IDLE_S)
            # One at first: `consume` returns early only when it has all that it was asked for.
            for message in self._consumer.consume(1 if due is None else _READ, max(0.0, until - now)):
                self._take(message)
            rows = sum(len(buffer) for buffer in self._buffers.values())
            num_bytes = sum(buffer.num_bytes for buffer in self._buffers.values())
            if rows and due is None:
                due = time.monotonic() + self._settings.linger_s
            if rows >= self._settings.max_buffer_rows or num_bytes >= self._settings.max_buffer_bytes:
                return

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise FatalError(f"Kafka: {error.str()}")
            # A topic that is not there yet, a broker that went away: the client tries again by itself.
            log.warning("kafka_error", code=error.name(), detail=error.str())
            return
        buffer = self._buffers.get((message.topic() or "", message.partition() or 0))
        if buffer is not None:
            buffer.add(_to_record(message))

    def _cut(self) -> list[Batch]:
        batches = []
        for (topic, partition), buffer in self._buffers.items():
            replay_last, committed = buffer.replay_last, buffer.committed
            records = buffer.cut(self._settings.max_batch_rows)
            if not records:
                continue
            first, last = records[0].offset, records[-1].offset
            if replay_last is not None and first <= replay_last and committed is not None:
                first, last = committed, replay_last  # as announced, whatever compaction left of it
            batches.append(Batch(self._topics[topic], topic, partition, first, last, records))
        return batches

    # --- committing ----------------------------------------------------------------------------------

    def _commit(self, batches: Sequence[Batch]) -> bool:
        """Commit progress and intents; False if the partitions are no longer ours, or the sink shall stop."""
        offsets = {
            place: TopicPartition(*place, buffer.done, intent.encode(None))
            for place, buffer in self._buffers.items()
            if buffer.done is not None
        }
        for batch in batches:
            place = (batch.topic, batch.partition)
            offsets[place] = TopicPartition(*place, batch.first, intent.encode(batch.last))
        if not offsets:
            return True
        if not self._commit_offsets(list(offsets.values())):
            return False
        for place, offset in offsets.items():
            if place in self._buffers:
                self._buffers[place].committed = offset.offset
                self._buffers[place].done = None
        return True

    def _commit_offsets(self, offsets: list[TopicPartition]) -> bool:
        backoff_s = 0.1
        assignment = self._assignment
        while True:
            error = self._try_commit(offsets)
            if error is None:
                return True
            log.warning("commit_failed", code=error.name(), detail=error.str(), retry_in_s=backoff_s)
            metrics.RETRIES.labels("kafka").inc()
            # Where it failed because the partitions are lost, waiting lets the client say so: the assignment
            # is another then. Nothing is thrown away before that, since nobody would read it again.
            if not self._pause_for(backoff_s) or assignment != self._assignment:
                return False
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    def _try_commit(self, offsets: list[TopicPartition]) -> KafkaError | None:
        try:
            results = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            return reason
        return next((each.error for each in results or [] if each.error is not None), None)

    # --- writing -------------------------------------------------------------------------------------

    def _write(self, pool: ThreadPoolExecutor, batches: Sequence[Batch]) -> None:
        """Write all batches, however long it takes, but for those whose partition is taken away."""
        assignment = self._assignment
        left = list(batches)
        backoff_s = 0.1
        while left:
            futures = [(batch, pool.submit(self._write_one, batch)) for batch in left]
            left, failed = [], None
            for batch, future in futures:
                try:
                    letters = future.result()
                    self._send(batch, letters)
                except RetryableError as error:
                    failed = error
                    left.append(batch)
                else:
                    self._buffers[batch.topic, batch.partition].written(batch.last)
                    metrics.ROWS.labels(batch.topic).inc(len(batch.records))
                    metrics.INSERTS.labels(batch.topic).inc()
                    metrics.BATCH_ROWS.observe(len(batch.records))
            if left:
                log.warning("paused", reason=str(failed)[:500], retry_in_s=backoff_s, num_batches=len(left))
                metrics.RETRIES.labels("clickhouse").inc()
                if not self._pause_for(backoff_s) or assignment != self._assignment:
                    return
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    def _write_one(self, batch: Batch) -> list[DeadLetter]:
        writer: ClickHouseWriter | None = getattr(self._local, "writer", None)
        if writer is None:
            writer = self._local.writer = self._new_writer()
        return writer.write(batch)

    def _send(self, batch: Batch, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            self._publisher.publish(letter)
        if letters:
            self._publisher.flush()
            for letter in letters:
                metrics.DEAD_LETTERS.labels(batch.topic, letter.reason).inc()
            log.warning("dead_letters", topic=batch.topic, partition=batch.partition, num=len(letters))

    def _pause_for(self, seconds: float) -> bool:
        """Wait without reading, but stay in the group; False when the sink shall stop."""
        places = [TopicPartition(*place) for place in self._buffers]
        self._consumer.pause(places)
        until = time.monotonic() + seconds
        while not self._stop.is_set() and time.monotonic() < until:
            for message in self._consumer.consume(1, min(_IDLE_S, max(0.0, until - time.monotonic()))):
                self._take(message)
        self._consumer.resume([TopicPartition(*place) for place in self._buffers])
        return not self._stop.is_set()

    # --- rebalancing ---------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assignment += 1
        self._buffers.clear()
        committed = self._fetch_committed(partitions)
        for place in committed:
            offset = place.offset if place.offset >= 0 else None
            replay_last = intent.decode(place.metadata) if offset is not None else None
            self._buffers[place.topic, place.partition] = PartitionBuffer(
                committed=offset, replay_last=replay_last
            )
            if replay_last is not None:
                log.info("replaying", topic=place.topic, partition=place.partition, last=replay_last)
        # By name, so that reading begins where the ranges do, and not by a second look at the commits.
        consumer.assign([TopicPartition(place.topic, place.partition, place.offset) for place in committed])
        # A partition that was paused when it was taken away comes back paused (librdkafka 2.16).
        consumer.resume([TopicPartition(place.topic, place.partition) for place in committed])
        log.info("assigned", num_partitions=len(committed))

    def _fetch_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """What the group has committed; tries again while Kafka does not answer. Empty when told to stop."""
        backoff_s = 0.1
        while not self._stop.is_set():
            try:
                found: list[TopicPartition] = self._consumer.committed(partitions, timeout=5.0)
                error = next((place.error for place in found if place.error is not None), None)
            except KafkaException as exception:
                error = exception.args[0]
            if error is None:
                return found
            log.warning("no_committed_offsets", code=error.name(), detail=error.str(), retry_in_s=backoff_s)
            metrics.RETRIES.labels("kafka").inc()
            self._stop.wait(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
        return []

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        done = [
            TopicPartition(place.topic, place.partition, buffer.done, intent.encode(None))
            for place in partitions
            if (buffer := self._buffers.get((place.topic, place.partition))) and buffer.done is not None
        ]
        if done and (error := self._try_commit(done)) is not None:
            # Whoever comes next replays the range, and its token finds it done.
            log.warning("commit_on_revoke_failed", code=error.name())
        self._lost(_consumer, partitions)

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assignment += 1
        for place in partitions:
            self._buffers.pop((place.topic, place.partition), None)
            for gauge in (metrics.LAG_RECORDS, metrics.LAG_SECONDS):
                with contextlib.suppress(KeyError):
                    gauge.remove(place.topic, str(place.partition))
        log.info("revoked", num_partitions=len(partitions))

    # --- metrics -------------------------------------------------------------------------------------

    def _measure(self) -> None:
        places = [TopicPartition(*place) for place in self._buffers]
        for place in self._consumer.position(places):
            _, high = self._consumer.get_watermark_offsets(place, cached=True)
            behind = max(0, high - place.offset) if high >= 0 and place.offset >= 0 else 0
            behind += len(self._buffers[place.topic, place.partition])
            metrics.LAG_RECORDS.labels(place.topic, place.partition).set(behind)
            age_s = time.time() - self._buffers[place.topic, place.partition].last_timestamp_ms / 1000
            metrics.LAG_SECONDS.labels(place.topic, place.partition).set(max(0.0, age_s) if behind else 0)


def _to_record(message: Message) -> LogRecord:
    kind, timestamp_ms = message.timestamp()
    return LogRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp_ms if kind else 0,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
