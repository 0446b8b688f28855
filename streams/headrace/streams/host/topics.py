"""What a host needs of the broker before it starts: co-partitioned source topics, and its changelog."""

import time
from collections.abc import Callable, Mapping, Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic

from headrace.schemas.errors import FatalError

_TRY_EVERY_S = 1.0
_SAY_EVERY_S = 10.0
_LOOK_S = 3.0
_TIMEOUT_S = 10.0

log = structlog.get_logger(__name__)


class Stopped(Exception):  # noqa: N818
    """The process was told to stop while it waited."""


def changelog_config(max_batch_bytes: int, keep_deletions_s: float) -> dict[str, str]:
    """Small segments, compacted early: what is compacted away need not be read at recovery."""
    return {
        "cleanup.policy": "compact",
        "max.message.bytes": str(max_batch_bytes + (1 << 20)),
        "segment.bytes": str(32 << 20),
        "min.cleanable.dirty.ratio": "0.2",
        "delete.retention.ms": str(int(keep_deletions_s * 1000)),
    }


def wait_for_topics(
    admin: AdminClient, topics: Sequence[str], *, limit_s: float, stopped: Callable[[], bool]
) -> int:
    """Wait until the topics exist, and return their common number of partitions.

    An absent broker is waited for without end, absent topics for `limit_s`. Raises FatalError for topics that
    are not there then or whose numbers of partitions differ, Stopped when told to stop.
    """
    absent_since_s: float | None = None
    said_s = 0.0
    while not stopped():
        waiting_for = "broker"
        try:
            found = admin.list_topics(timeout=_LOOK_S).topics
        except KafkaException as exc:
            reason = str(exc.args[0])
            absent_since_s = None
        else:
            missing = [topic for topic in topics if topic not in found]
            if not missing:
                return _common_partitions({topic: len(found[topic].partitions) for topic in topics})
            waiting_for, reason = "topics", ", ".join(missing)
            now_s = time.monotonic()
            absent_since_s = now_s if absent_since_s is None else absent_since_s
            if now_s - absent_since_s > limit_s:
                raise FatalError(
                    f"topics not there after {limit_s:g} s: {reason}; run `headrace topics apply`"
                )
        if time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            log.warning("waiting", what=waiting_for, reason=reason)
        time.sleep(_TRY_EVERY_S)
    raise Stopped


def ensure_changelog(
    admin: AdminClient, topic: str, *, partitions: int, replication: int, config: Mapping[str, str]
) -> None:
    """Create the changelog, or check the one that is there. Raises FatalError if it does not fit."""
    new = NewTopic(topic, num_partitions=partitions, replication_factor=replication, config=dict(config))
    try:
        admin.create_topics([new], request_timeout=_TIMEOUT_S)[topic].result()
    except KafkaException as exc:
        if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise FatalError(f"changelog topic {topic} can't be created: {exc}") from exc
    _check_changelog(admin, topic, partitions)


def _check_changelog(admin: AdminClient, topic: str, partitions: int) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while (found := admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]).error is not None:
        if time.monotonic() > deadline_s:
            raise FatalError(f"changelog topic {topic} was created but is not there: {found.error}")
        time.sleep(0.1)
    if len(found.partitions) != partitions:
        raise FatalError(
            f"changelog topic {topic} has {len(found.partitions)} partitions, its sources have {partitions}: "
            "partitions can't be added under a processor with state; replay into new topics"
        )
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource].result()
    if entries["cleanup.policy"].value != "compact":
        policy = entries["cleanup.policy"].value
        raise FatalError(f"changelog topic {topic} has cleanup.policy={policy}, not compact")


def _common_partitions(numbers: Mapping[str, int]) -> int:
    if len(set(numbers.values())) != 1:
        counts = ", ".join(f"{topic}: {number}" for topic, number in sorted(numbers.items()))
        raise FatalError(f"source topics must have the same number of partitions ({counts})")
    return next(iter(numbers.values()))
