"""Tail: a consumer without a group, over the partitions and from the offsets that its owner names.

Nothing is committed. It lives through an absence of the broker; what can't get better by itself is raised.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.schemas.errors import FatalError
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.settings import KafkaSettings

ANSWER_S = 30.0
"""How long Kafka may take to answer before it counts as away."""
_RETRY_S = 0.1
_MAX_RECORDS = 1000
_PASSING = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TRANSPORT,  # noqa: SLF001  so it is named
    }
)


class Place(NamedTuple):
    topic: str
    partition: int


class Tailed(NamedTuple):
    """A record; with neither key nor value and `at_end` set, the news that `offset` is the end."""

    place: Place
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    at_end: bool = False


class Tail:
    """For one thread at a time: confluent-kafka 2.16 lets calls from others starve. `close` it at the end."""

    def __init__(self, settings: KafkaSettings, *, name: str, fetch_wait_ms: int = 25) -> None:
        """`fetch_wait_ms`: how long the broker may keep a fetch where nothing is new, and with it the first
        fetch of a place that is moved meanwhile: with librdkafka's 500 an answer takes half a second, with
        the default 20 ms. New records come at once whatever it is.
        """
        self._settings = settings
        self._num_partitions: dict[str, int] = {}
        self._assigned: set[Place] = set()
        self._consumer = Consumer(
            {
                "client.id": f"headrace-{name}",
                # The client asks for one. Nothing is committed, so the broker never hears of it.
                "group.id": f"{settings.topic_prefix}-{name}-reader",
                "log_level": 2,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": fetch_wait_ms,
                "fetch.message.max.bytes": 16 * 1024 * 1024,
                "queued.max.messages.kbytes": 64 * 1024,
            }
            | settings.librdkafka()
        )

    def num_partitions(self, topic: str) -> int:
        """FatalError where there is no such topic."""
        known = self._num_partitions.get(topic)
        if known is None:
            try:
                described = self._consumer.list_topics(topic, timeout=ANSWER_S).topics[topic]
            except KafkaException as error:
                raise self._unavailable(error) from error
            if described.error is not None or not described.partitions:
                raise FatalError(
                    f"there is no topic {topic} at {self._settings.bootstrap_servers}: "
                    "`headrace topics apply` creates it"
                )
            known = self._num_partitions[topic] = len(described.partitions)
        return known

    def places(self, topic: str) -> list[Place]:
        """Every partition of a topic."""
        return [Place(topic, partition) for partition in range(self.num_partitions(topic))]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offsets that the next records will get."""
        return self._look_up(dict.fromkeys(places, OFFSET_END))

    def beginnings(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offsets of the oldest records that are kept."""
        return self._look_up(dict.fromkeys(places, OFFSET_BEGINNING))

    def offsets_at(self, times_ms: Mapping[Place, int]) -> dict[Place, int]:
        """The first offset of each place whose record's timestamp is not before; its end if there is none."""
        # The ends come first: what is written between the two questions must not be passed over.
        ends = self.ends(times_ms)
        found = self._look_up({place: max(time_ms, 0) for place, time_ms in times_ms.items()})
        return {place: ends[place] if offset < 0 else offset for place, offset in found.items()}

    def move(self, starts: Mapping[Place, int]) -> None:
        """Read these places from these offsets on, whether or not they were read before."""
        self.drop(starts)
        if starts:
            self._consumer.incremental_assign([TopicPartition(*place, at) for place, at in starts.items()])
            self._assigned |= set(starts)

    def drop(self, places: Iterable[Place]) -> None:
        """Read these places no more."""
        dropped = self._assigned & set(places)
        if dropped:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in dropped])
            self._assigned -= dropped

    def poll(self, timeout_s: float) -> list[Tailed]:
        """What has come, in the order of each partition; waits for the first up to this long."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        tailed = []
        for message in [first, *self._consumer.consume(_MAX_RECORDS, timeout=0)]:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  so it is named
                if _is_passing(error):
                    continue
                raise self._unavailable(KafkaException(error))
            tailed.append(
                Tailed(
                    Place(message.topic(), message.partition()),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value() if error is None else None,
                    tuple(message.headers() or ()),
                    error is not None,
                )
            )
        return tailed

    def read(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[Tailed]:
        """The records from these offsets to these ends. KafkaUnavailableError when they stop to come."""
        left = {place: end for place, end in ends.items() if starts[place] < end}
        self.move({place: starts[place] for place in left})
        deadline = time.monotonic() + ANSWER_S
        while left:
            tailed = self.poll(1.0)
            if tailed:
                deadline = time.monotonic() + ANSWER_S
            elif time.monotonic() > deadline:
                raise self._unavailable(None)
            for record in tailed:
                end = left.get(record.place)
                if end is None:
                    continue
                if not record.at_end and record.offset < end:
                    yield record
                if record.offset >= end - 1:
                    left.pop(record.place)
                    self.drop([record.place])

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look_up(self, times_ms: Mapping[Place, int]) -> dict[Place, int]:
        if not times_ms:
            return {}
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                return self._offsets([TopicPartition(*place, time_ms) for place, time_ms in times_ms.items()])
            except KafkaException as error:
                # A leader that moves is known again in a moment.
                if time.monotonic() > deadline or not _is_passing(error.args[0]):
                    raise self._unavailable(error) from error
            time.sleep(_RETRY_S)

    def _offsets(self, asked: list[TopicPartition]) -> dict[Place, int]:
        found = self._consumer.offsets_for_times(asked, timeout=ANSWER_S)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return {Place(place.topic, place.partition): place.offset for place in found}

    def _unavailable(self, error: KafkaException | None) -> KafkaUnavailableError:
        why = error.args[0].str() if error else f"nothing came in {ANSWER_S:g} s"
        return KafkaUnavailableError(f"no answer from Kafka at {self._settings.bootstrap_servers}: {why}")


def _is_passing(error: KafkaError) -> bool:
    """What a broker says while it starts, ends or hands over: the same question will do well later."""
    return error.retriable() or error.code() in _PASSING
