"""AsyncPublisher: the publisher for asyncio programs; the loop never waits for Kafka.

One thread of its own serves deliveries, so that acknowledgements come in while the loop is idle.
"""

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, Message

from headrace.schemas.records import Record
from headrace.streams.client.errors import DeliveryError
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings

_SERVE_S = 0.1


class AsyncPublisher:
    """Use it as an async context manager within one event loop. Options are the Publisher's."""

    def __init__(self, settings: KafkaSettings, **options: Any) -> None:  # noqa: ANN401
        self._publisher = Publisher(settings, **options)
        self._closing = threading.Event()
        self._server = threading.Thread(target=self._serve, name="headrace-publisher", daemon=True)

    async def publish(self, record: Record, *, headers: Mapping[str, bytes] | None = None) -> None:
        """Hand the record over; waits only while the buffer is full. Errors as `Publisher.publish`."""
        if self._publisher.has_room():
            self._publisher.publish(record, headers=headers)
        else:
            await asyncio.to_thread(self._publisher.publish, record, headers=headers)

    async def publish_acknowledged(
        self, record: Record, *, headers: Mapping[str, bytes] | None = None
    ) -> tuple[int, int]:
        """Return (partition, offset) once Kafka has acknowledged this record (G1); DeliveryError if not."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[int, int]] = loop.create_future()

        def settle(error: KafkaError | None, place: tuple[int, int], topic: str, key: bytes | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(place)
            else:
                done.set_exception(DeliveryError(1, [(topic, key, error.str())]))

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            place = (message.partition() or 0, message.offset() or 0)
            loop.call_soon_threadsafe(settle, error, place, message.topic() or "?", message.key())

        if self._publisher.has_room():
            self._publisher.publish(record, headers=headers, on_delivery=on_delivery)
        else:
            await asyncio.to_thread(self._publisher.publish, record, headers=headers, on_delivery=on_delivery)
        return await done

    async def flush(self, timeout_s: float = 120.0) -> None:
        """Return when every record published before is acknowledged. DeliveryError if one was not."""
        await asyncio.to_thread(self._publisher.flush, timeout_s)

    async def __aenter__(self) -> Self:
        self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.flush()
        finally:
            self._closing.set()
            await asyncio.to_thread(self._server.join)

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._publisher.serve(_SERVE_S)
