"""Publish dead letters' original records again, and leave a mark of it.

A record goes to its topic with its own bytes, key and headers, and one header more that says of which
record it is a copy. Once Kafka has acknowledged it, a mark is written to dead-letters: a DeadLetter of the
same record whose consumer is `replay` and whose detail says where the copy stands.

The mark lives as long as the dead letter does, and costs nothing to find: both are on one topic, in one
partition. Its limits: a process killed between acknowledgement and mark (at most 500 records, or 32 MiB),
or two people replaying at once, publish a record twice. Natural keys make that harmless (G5).
"""

from collections.abc import ItemsView, Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message

from headrace.cli.dead_letter_log import REPLAYED, REPLAYER, DeadLetterLog, Letter, Place
from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import DeadLetter
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings

HEADER = "headrace-replay-of"

_FLUSH_RECORDS = 500
_FLUSH_BYTES = 32 * 1024 * 1024


class Headers(dict[str, bytes]):
    """Kafka's headers as a mapping. A key may come several times, and then `items` has each of them."""

    def __init__(self, pairs: Sequence[tuple[str, bytes]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> ItemsView[str, bytes]:  # type: ignore[override]
        return _Pairs(self, self._pairs)


class _Pairs(ItemsView[str, bytes]):
    def __init__(self, mapping: Headers, pairs: Sequence[tuple[str, bytes]]) -> None:
        super().__init__(mapping)
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)


class Failure(NamedTuple):
    place: Place
    why: str


class Replay:
    """One run of it. `num_done` counts what is acknowledged and marked, also when an error ends the run."""

    def __init__(self, settings: KafkaSettings, codec: Codec, log: DeadLetterLog) -> None:
        self._settings = settings
        self._codec = codec
        self._log = log
        self._landed: list[tuple[DeadLetter, str]] = []
        self.num_done = 0
        self.failures: list[Failure] = []

    def run(self, letters: Sequence[Letter]) -> Iterator[int]:
        """Publish them in the order of the log; yields how many are done, after each flush.

        What Kafka refuses for itself is kept in `failures`, and the others go on. DeliveryError and
        KafkaUnavailableError end the run.
        """
        with Publisher(self._settings, codec=self._codec) as publisher:
            waiting = waiting_bytes = 0
            for dead in self._log.fetch(letter.first.position for letter in letters):
                self._publish(publisher, dead)
                waiting += 1
                waiting_bytes += len(dead.value or b"")
                if waiting >= _FLUSH_RECORDS or waiting_bytes >= _FLUSH_BYTES:
                    self._settle(publisher)
                    waiting = waiting_bytes = 0
                    yield self.num_done
            self._settle(publisher)
            yield self.num_done

    def _publish(self, publisher: Publisher, dead: DeadLetter) -> None:
        place = Place(dead.topic, dead.partition, dead.offset)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(Failure(place, error.str()))
            else:
                at = Place(message.topic() or "", message.partition() or 0, message.offset() or 0)
                self._landed.append((_without_value(dead), str(at)))

        try:
            publisher.publish_bytes(
                dead.topic,
                dead.key_bytes,
                dead.value,
                headers=Headers(headers_of(dead)),
                # A record without a key has no place of its own but the one that it had.
                partition=-1 if dead.key_bytes is not None else dead.partition,
                on_delivery=on_delivery,
            )
        except BadRecordError as error:
            self.failures.append(Failure(place, str(error)))

    def _settle(self, publisher: Publisher) -> None:
        """Wait until all is acknowledged, and then until the marks of it are."""
        publisher.flush()
        landed, self._landed = self._landed, []
        for dead, at in landed:
            mark = {"consumer": REPLAYER, "reason": REPLAYED, "detail": f"published again as {at}"}
            publisher.publish(dead.model_copy(update=mark))
        publisher.flush()
        self.num_done += len(landed)


def headers_of(dead: DeadLetter) -> list[tuple[str, bytes]]:
    """The record's own headers, and whose copy it is. That of an earlier replay makes room."""
    own = [(header.key, header.value) for header in dead.headers if header.key != HEADER]
    place = Place(dead.topic, dead.partition, dead.offset)
    return [*own, (HEADER, str(place).encode())]


def _without_value(dead: DeadLetter) -> DeadLetter:
    update: dict[str, Any] = {"value": None, "headers": ()}
    return dead.model_copy(update=update)
