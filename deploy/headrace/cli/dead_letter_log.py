"""What stands on the dead-letters topic, from its beginning to its end at the time of asking.

Read with a plain consumer: no group, nothing committed, right at once, whether or not a sink runs. Values
are not kept: a million dead letters fit into memory, whatever their records weigh.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.schemas.codec import Codec
from headrace.schemas.errors import BadRecordError, FatalError
from headrace.schemas.records import DeadLetter
from headrace.schemas.topics import topic_name
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.settings import KafkaSettings

REPLAYER = "replay"
"""The consumer of a dead letter that says: this record was published again."""
REPLAYED = "replayed"

_ANSWER_S = 30.0


class Place(NamedTuple):
    """Where a record stood that could not be processed: `TOPIC:PARTITION:OFFSET`."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "Place":
        """ValueError if it is not of that form. A topic may hold colons: it may be a file's name."""
        topic, partition, offset = text.rsplit(":", 2)
        place = cls(topic, int(partition), int(offset))
        if not topic or place.partition < 0 or place.offset < 0:
            raise ValueError(f"not a place: {text}")
        return place

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Entry(NamedTuple):
    """One dead letter: who met the record, and what was wrong. `position` is its own, on dead-letters."""

    position: tuple[int, int]
    at: datetime
    consumer: str
    reason: str
    detail: str


@dataclass
class Letter:
    """A record that could not be processed, with everything said of it; the first entry is the oldest."""

    place: Place
    num_bytes: int
    entries: list[Entry] = field(default_factory=list)
    replays: list[Entry] = field(default_factory=list)

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def consumers(self) -> list[str]:
        return sorted({entry.consumer for entry in self.entries})

    @property
    def reasons(self) -> list[str]:
        return list(dict.fromkeys(entry.reason for entry in self.entries))


class Contents(NamedTuple):
    """The letters by place, oldest first, and the positions on dead-letters that hold something else."""

    letters: dict[Place, Letter]
    unreadable: list[tuple[tuple[int, int], str]]


class Filter(NamedTuple):
    """Which letters are meant; what is None does not matter. One entry must match all of it."""

    topic: str | None = None
    reason: str | None = None
    consumer: str | None = None
    since: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def matches(self, letter: Letter) -> bool:
        return self.topic in {None, letter.place.topic} and any(map(self._fits, letter.entries))

    def _fits(self, entry: Entry) -> bool:
        return (
            self.reason in {None, entry.reason}
            and self.consumer in {None, entry.consumer}
            and (self.since is None or entry.at >= self.since)
        )


class DeadLetterLog:
    """Reads the dead-letters topic. KafkaUnavailableError where the broker stops answering."""

    def __init__(self, settings: KafkaSettings, codec: Codec) -> None:
        self._settings = settings
        self._codec = codec
        self.topic = topic_name(DeadLetter, settings.topic_prefix)

    def contents(self) -> Contents:
        """Everything on it, one Letter for each record, however many consumers met it and how often."""
        letters: dict[Place, Letter] = {}
        unreadable = []
        for message in self._messages({}):
            position = _position(message)
            try:
                dead = self._codec.decode(message.value(), DeadLetter)
            except BadRecordError as error:
                unreadable.append((position, str(error)))
                continue
            _add(letters, dead, Entry(position, _time(message), dead.consumer, dead.reason, dead.detail))
        # A mark alone is of a record whose dead letter is past its retention.
        found = {place: letter for place, letter in letters.items() if letter.entries}
        return Contents(found, unreadable)

    def fetch(self, positions: Iterable[tuple[int, int]]) -> Iterator[DeadLetter]:
        """The dead letters at these positions, with their values, in the order of the log."""
        wanted = set(positions)
        starts: dict[int, int] = {}
        for partition, offset in wanted:
            starts[partition] = min(offset, starts.get(partition, offset))
        for message in self._messages(starts) if wanted else ():
            if _position(message) in wanted:
                wanted.discard(_position(message))
                yield self._codec.decode(message.value(), DeadLetter)
                if not wanted:
                    return

    def _messages(self, starts: Mapping[int, int]) -> Iterator[Message]:
        """From the starts, or from the beginning, to the end as it is now."""
        consumer = Consumer(
            {
                "client.id": "headrace-dead-letters",
                # The client asks for one. Nothing is committed, so the broker never hears of it.
                "group.id": f"{self._settings.topic_prefix}-dead-letters-reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.message.max.bytes": 16 * 1024 * 1024,
                "queued.max.messages.kbytes": 64 * 1024,
            }
            | self._settings.librdkafka()
        )
        try:
            yield from self._read(consumer, starts)
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, starts: Mapping[int, int]) -> Iterator[Message]:
        described = consumer.list_topics(self.topic, timeout=_ANSWER_S).topics[self.topic]
        if described.error is not None:
            raise FatalError(f"there is no topic {self.topic}: `headrace topics apply` creates it")
        ends = {}
        for partition in starts or described.partitions:
            at = TopicPartition(self.topic, partition)
            low, high = consumer.get_watermark_offsets(at, timeout=_ANSWER_S)
            if high > max(low, starts.get(partition, 0)):
                ends[partition] = high
        consumer.assign(
            [TopicPartition(self.topic, number, starts.get(number, OFFSET_BEGINNING)) for number in ends]
        )
        while ends:
            message = consumer.poll(_ANSWER_S)
            if message is None:
                raise self._unavailable(f"nothing came in {_ANSWER_S:g} s")
            error = message.error()
            partition = message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  so it is named
                raise KafkaException(error)
            if error is None and message.offset() < ends.get(partition, 0):
                yield message
            if message.offset() >= ends.get(partition, 0) - 1:
                ends.pop(partition, None)

    def _unavailable(self, why: str) -> KafkaUnavailableError:
        return KafkaUnavailableError(
            f"reading {self.topic} from Kafka at {self._settings.bootstrap_servers} failed: {why}"
        )


def _add(letters: dict[Place, Letter], dead: DeadLetter, entry: Entry) -> None:
    place = Place(dead.topic, dead.partition, dead.offset)
    letter = letters.get(place)
    if letter is None:
        letter = letters[place] = Letter(place, 0)
    if dead.consumer == REPLAYER and dead.reason == REPLAYED:
        letter.replays.append(entry)
        return
    letter.num_bytes = len(dead.value or b"")
    if all(known[2:] != entry[2:] for known in letter.entries):
        letter.entries.append(entry)


def _position(message: Message) -> tuple[int, int]:
    return message.partition(), message.offset()


def _time(message: Message) -> datetime:
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
