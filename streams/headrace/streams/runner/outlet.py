"""Outlet: where a runner's records go, each with word of what became of it."""

import threading
from collections.abc import Callable
from typing import Protocol, Self

from confluent_kafka import KafkaError, Message

from headrace.schemas.records import Record
from headrace.streams.client.publisher import Publisher

Delivered = Callable[[str | None], object]
"""Called once, from any thread: with None when the record is acknowledged, else with why it is not."""

_SERVE_S = 0.2


class Outlet(Protocol):
    def publish(self, record: Record, delivered: Delivered) -> None:
        """Hand the record over. What it raises is the record's end: `delivered` is not called then."""

    def has_room(self) -> bool:
        """Whether `publish` would return at once."""


class KafkaOutlet:
    """A context manager: one thread of its own takes in the acknowledgements.

    Safe to share between threads. Callers must not hold what `delivered` needs: a publish may run the
    callbacks of others.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._closing = threading.Event()
        self._server = threading.Thread(target=self._serve, name="headrace-deliveries", daemon=True)

    def publish(self, record: Record, delivered: Delivered) -> None:
        def on_delivery(error: KafkaError | None, _: Message) -> None:
            delivered(None if error is None else error.str())

        self._publisher.publish(record, on_delivery=on_delivery)

    def has_room(self) -> bool:
        return self._publisher.has_room()

    def pending(self) -> int:
        """Records that are neither acknowledged nor failed."""
        return self._publisher.pending()

    def flush(self, timeout_s: float) -> None:
        """Return when nothing is pending; DeliveryError after the time-out."""
        self._publisher.flush(timeout_s)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.join()

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._publisher.serve(_SERVE_S)
