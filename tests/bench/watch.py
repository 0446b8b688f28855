"""What a bench waits for, asked of Kafka and ClickHouse themselves, often and cheaply."""

import time
from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.cli.stack.service import Service
from headrace.schemas.errors import FatalError
from headrace.streams.client.admin import admin_client
from headrace.streams.settings import KafkaSettings

_TIMEOUT_S = 10.0
_NO_GROUP_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_ID_NOT_FOUND,
)


def wait_until(
    condition: Callable[[], bool],
    *,
    what: str,
    processes: Iterable[Service] = (),
    every_s: float = 0.02,
    limit_s: float = 300.0,
) -> float:
    """The moment at which the condition was found true. FatalError when a process dies or time is up."""
    processes = tuple(processes)
    deadline = time.perf_counter() + limit_s
    while True:
        holds, now = condition(), time.perf_counter()
        if holds:
            return now
        for process in processes:
            if not process.running:
                raise FatalError(f"while waiting for {what}: {process.death_notice()}")
        if now > deadline:
            said = "\n".join(f"{process.name}: {process.tail()}" for process in processes)
            raise FatalError(f"not within {limit_s:g} s: {what}\n{said}")
        time.sleep(every_s)


class Watch:
    """Keeps its connections, so that a question is cheap."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = admin_client(settings)
        self._members: dict[str, Consumer] = {}
        """Only to ask: they don't join."""

    def is_assigned(self, group: str) -> bool:
        """Whether a member of the group has been given partitions."""
        (future,) = self._admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S).values()
        try:
            members = future.result().members
        except KafkaException as error:
            if error.args[0].code() in _NO_GROUP_YET:
                return False
            raise
        return any(member.assignment.topic_partitions for member in members)

    def ends(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """The next offset of each partition."""
        known = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        places = [TopicPartition(topic, number) for topic in topics for number in known[topic].partitions]
        futures = self._admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), request_timeout=_TIMEOUT_S
        )
        return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}

    def num_records(self, *topics: str) -> int:
        """Records that were ever acknowledged on these topics."""
        return sum(self.ends(topics).values())

    def num_committed(self, group: str, *topics: str) -> int:
        """Records that the group has committed."""
        if group not in self._members:
            # Not through the admin client: librdkafka 2.16 crashes the process when the group's coordinator
            # is still loading, since it looks for a consumer that an admin client has not.
            properties = {"group.id": group, "enable.auto.commit": False, "log_level": 0}
            self._members[group] = Consumer(properties | self._settings.librdkafka())
        places = [TopicPartition(*place) for place in self.ends(topics)]
        try:
            committed = self._members[group].committed(places, timeout=_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in _NO_GROUP_YET:
                return 0
            raise
        return sum(max(place.offset, 0) for place in committed)
