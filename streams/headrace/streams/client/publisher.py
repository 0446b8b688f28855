"""Publisher: records to Kafka, typed, idempotent, acknowledged by all in-sync replicas.

Buffers are bounded and push back: when full, `publish` waits, then raises. Nothing is dropped: a record
that Kafka did not acknowledge surfaces as DeliveryError from the next `publish`, `flush` or `close`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError
from headrace.schemas.records import Record
from headrace.schemas.topics import topic_of
from headrace.streams.client.errors import DeliveryError, PublisherFullError, RecordTooLargeError
from headrace.streams.settings import KafkaSettings

OnDelivery = Callable[[KafkaError | None, Message], None]

MAX_RECORD_BYTES = 8 * 1024 * 1024
"""Of a record as Kafka takes it; a dead letter may be larger by what stands around the original."""
MAX_MESSAGE_BYTES = 9 * 1024 * 1024
"""The largest that any topic takes."""
_FRAMING_BYTES = 64 * 1024
_KEPT_FAILURES = 100
_SERVE_EVERY = 64


class Publisher:
    """Safe to share between threads. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        codec: Codec | None = None,
        max_pending: int = 100_000,
        max_pending_bytes: int = 256 * 1024 * 1024,
        publish_timeout_s: float = 60.0,
        delivery_timeout_s: float = 120.0,
        linger_ms: float = 5.0,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.codec = codec or Codec()
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._bytes_lock = threading.Lock()
        self._publish_timeout_s = publish_timeout_s
        self._failures: list[tuple[str, bytes | None, str]] = []
        self._num_failed = 0
        self._failures_lock = threading.Lock()
        self._topics: dict[type[Record], tuple[str, int]] = {}
        self._until_serve = _SERVE_EVERY
        self._producer = Producer(
            {
                "client.id": "headrace-publisher",
                # Its retries would fill stderr while Kafka is away; what they lead to is an error of ours.
                "log_level": 2,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "zstd",
                # As in Kafka's own clients and in Faust: one key, one partition number, whoever writes.
                "partitioner": "murmur2_random",
                "linger.ms": linger_ms,
                "batch.size": 1024 * 1024,
                "batch.num.messages": 10_000,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "queue.buffering.max.messages": max_pending,
                "queue.buffering.max.kbytes": max(max_pending_bytes // 1024, 1),
                "delivery.timeout.ms": int(delivery_timeout_s * 1000),
                "on_delivery": self._on_delivery,
            }
            | settings.librdkafka()
            | dict(properties or {})
        )

    def publish(
        self,
        record: Record,
        *,
        headers: Mapping[str, bytes] | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand the record over; returns before it is acknowledged. `flush` waits for that.

        `headers` are carried through (`traceparent`). `on_delivery`, called from a thread that publishes,
        flushes or serves, takes this record's failure upon itself. Raises DeliveryError for records
        published earlier, PublisherFullError when there is no room within `publish_timeout_s` (0: it never
        waits), RecordTooLargeError.
        """
        known = self._topics.get(type(record))
        if known is None:
            spec = topic_of(type(record))
            limit = int(spec.config["max.message.bytes"]) - _FRAMING_BYTES
            known = self._topics[type(record)] = spec.full_name(self.settings.topic_prefix), limit
        topic, max_bytes = known
        value = self.codec.encode(record, topic)
        if len(value) > max_bytes:
            raise RecordTooLargeError(f"{len(value)} bytes on {topic}: the limit is {max_bytes}")
        self.publish_bytes(topic, record.key, value, headers=headers, on_delivery=on_delivery)

    def publish_bytes(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Mapping[str, bytes] | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """As `publish`, for bytes that are encoded already. RecordTooLargeError is for what no topic takes;
        what is over the limit of this one is a DeliveryError.
        """
        if self._num_failed:
            self._raise_failures()
        arguments: dict[str, Any] = {"key": key, "value": value, "partition": partition}
        if headers:
            arguments["headers"] = list(headers.items())
        size = len(value) if value else 0
        if on_delivery is not None:
            arguments["on_delivery"] = partial(self._settle, on_delivery)
        # Before it is handed over: its delivery may be told of in another thread at once.
        self._count_bytes(size)
        try:
            try:
                self._producer.produce(topic, **arguments)
            except BufferError:
                self._produce_when_there_is_room(topic, arguments)
            except KafkaException as error:
                raise _translate(error, topic, value) from error
        except BaseException:
            self._count_bytes(-size)
            raise
        self._until_serve -= 1
        if self._until_serve <= 0:
            self._until_serve = _SERVE_EVERY
            self._producer.poll(0)

    def serve(self, timeout_s: float = 0.0) -> None:
        """Run the callbacks of deliveries that have come in, waiting for one up to this long."""
        self._producer.poll(timeout_s)

    def pending(self) -> int:
        """Records handed over and not yet acknowledged or failed."""
        return len(self._producer)

    def has_room(self) -> bool:
        """Whether `publish` would return at once; with other threads publishing, probably."""
        return (
            len(self._producer) < self._max_pending * 0.9
            and self._pending_bytes < self._max_pending_bytes * 0.9
        )

    def flush(self, timeout_s: float = 120.0) -> None:
        """Return when every record published before is acknowledged. DeliveryError if one was not.

        A record still on its way at the time-out counts as not acknowledged, and may arrive yet.
        """
        left = self._producer.flush(timeout_s)
        if left:
            with self._failures_lock:
                self._num_failed += left
                self._failures.append(("?", None, f"no acknowledgement within {timeout_s:g} s"))
        self._raise_failures()

    def close(self) -> None:
        """Flush. The publisher must not be used after."""
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _produce_when_there_is_room(self, topic: str, arguments: dict[str, Any]) -> None:
        deadline = time.monotonic() + self._publish_timeout_s
        while True:
            self._producer.poll(min(0.1, self._publish_timeout_s))
            self._raise_failures()
            try:
                self._producer.produce(topic, **arguments)
            except BufferError:
                if time.monotonic() >= deadline:
                    raise PublisherFullError(
                        f"{self.pending()} records wait for Kafka at {self.settings.bootstrap_servers}, "
                        f"and no room came up in {self._publish_timeout_s:g} s"
                    ) from None
            except KafkaException as error:
                raise _translate(error, topic, arguments["value"]) from error
            else:
                return

    def _count_bytes(self, size: int) -> None:
        with self._bytes_lock:
            self._pending_bytes += size

    def _settle(self, on_delivery: OnDelivery, error: KafkaError | None, message: Message) -> None:
        self._count_bytes(-len(message))
        on_delivery(error, message)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        self._count_bytes(-len(message))
        if error is not None:
            with self._failures_lock:
                self._num_failed += 1
                if len(self._failures) < _KEPT_FAILURES:
                    self._failures.append((message.topic() or "?", message.key(), error.str()))

    def _raise_failures(self) -> None:
        with self._failures_lock:
            count, failures = self._num_failed, self._failures
            self._num_failed, self._failures = 0, []
        if count:
            raise DeliveryError(count, failures)


def _translate(error: KafkaException, topic: str, value: bytes | None) -> Exception:
    reason: KafkaError = error.args[0]
    if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        size = len(value or b"")
        return RecordTooLargeError(f"{size} bytes on {topic}: no topic takes more than {MAX_MESSAGE_BYTES}")
    if reason.fatal() or reason.code() == KafkaError._FATAL:  # noqa: SLF001  the client's own name for it
        # An idempotent producer that lost its place: every later try of this one would fail as well.
        return FatalError(f"the producer can't go on, start a new one: {reason.str()}")
    return DeliveryError(1, [(topic, None, reason.str())])
