"""Topics made true from their files, and how far consumer groups are behind."""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.schemas.errors import FatalError
from headrace.schemas.topics import TopicSpec, topic_specs
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.settings import KafkaSettings

TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.05
_NO_LEADER = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)
_NO_COORDINATOR = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,  # noqa: SLF001  the client's own name for it
    }
)


class TopicStatus(NamedTuple):
    """A topic as the broker has it. `differences` maps a setting to (wanted, found)."""

    spec: TopicSpec
    name: str
    exists: bool
    partitions: int
    replication_factor: int
    config: dict[str, str]
    differences: dict[str, tuple[str, str]]


class Applied(NamedTuple):
    """What `apply_topics` did to a topic: created, updated or unchanged."""

    name: str
    action: str
    detail: str = ""


def admin_client(settings: KafkaSettings) -> AdminClient:
    return AdminClient({"client.id": "headrace-admin", "log_level": 2} | settings.librdkafka())


def describe_topics(settings: KafkaSettings) -> list[TopicStatus]:
    """Every declared topic against what the broker says of it. KafkaUnavailableError if none answers."""
    admin = admin_client(settings)
    names = {spec.full_name(settings.topic_prefix): spec for spec in topic_specs().values()}
    existing = _metadata(admin, settings).topics
    found = [name for name in names if name in existing]
    configs = _configs(admin, found)
    statuses = []
    for name, spec in names.items():
        partitions = existing[name].partitions if name in existing else {}
        replicas = len(partitions[0].replicas) if partitions else 0
        config = configs.get(name, {})
        wanted = {key: str(value) for key, value in spec.config.items()}
        differences = {
            key: (value, config.get(key, "?")) for key, value in wanted.items() if config.get(key) != value
        }
        wanted_partitions = _partitions(spec, settings)
        if len(partitions) != wanted_partitions:
            differences["partitions"] = (str(wanted_partitions), str(len(partitions)))
        exists = name in existing
        statuses.append(
            TopicStatus(spec, name, exists, len(partitions), replicas, config, differences if exists else {})
        )
    return statuses


def apply_topics(settings: KafkaSettings) -> list[Applied]:
    """Create what is missing, set configuration that differs; partitions are checked, never changed.
    What it created can be used when it returns.

    FatalError when a topic has another number of partitions: changing it would move keys away from
    their history.
    """
    statuses = describe_topics(settings)
    wrong = [
        f"{status.name} has {status.partitions} partitions, {status.differences['partitions'][0]} are wanted"
        for status in statuses
        if "partitions" in status.differences
    ]
    if wrong:
        raise FatalError(
            "; ".join(wrong) + ". Partitions can't change under existing keys: use another topic prefix, "
            "or set HEADRACE_KAFKA_PARTITIONS to what is there."
        )
    admin = admin_client(settings)
    missing = [status for status in statuses if not status.exists]
    if missing:
        _create(admin, missing, settings)
    applied = []
    for status in statuses:
        if not status.exists:
            applied.append(
                Applied(status.name, "created", f"{_partitions(status.spec, settings)} partitions")
            )
        elif status.differences:
            _alter(admin, status)
            detail = ", ".join(f"{k}: {found} → {want}" for k, (want, found) in status.differences.items())
            applied.append(Applied(status.name, "updated", detail))
        else:
            applied.append(Applied(status.name, "unchanged"))
    return applied


def group_lag(settings: KafkaSettings, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Records that the group has not committed yet, by (topic, partition), of full topic names.

    A partition without a commit counts from its beginning.
    """
    admin = admin_client(settings)
    metadata = _metadata(admin, settings)
    places = [
        TopicPartition(topic, partition)
        for topic in topics
        if topic in metadata.topics
        for partition in metadata.topics[topic].partitions
    ]
    if not places:
        return {}
    ends = _offsets(admin, places, OffsetSpec.latest())
    starts = _offsets(admin, places, OffsetSpec.earliest())
    committed = _committed(settings, group, places)
    return {place: end - committed.get(place, starts[place]) for place, end in ends.items()}


def group_offsets(settings: KafkaSettings, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """The group's next offset in each partition of these topics in which it has committed one."""
    metadata = _metadata(admin_client(settings), settings)
    return _committed(
        settings, group, [TopicPartition(t, p) for t in topics for p in metadata.topics[t].partitions]
    )


def _committed(
    settings: KafkaSettings, group: str, places: list[TopicPartition]
) -> dict[tuple[str, int], int]:
    """The group's next offsets, where it has committed, by a consumer that does not join it.

    Not by `AdminClient.list_consumer_group_offsets`: while a broker sets up its first group coordinator, that
    of confluent-kafka 2.16 ends the process with a segmentation fault (in 5 of 9 tries) or hangs.
    """
    consumer = Consumer(
        {"client.id": "headrace-admin", "log_level": 2, "enable.auto.commit": False}
        | settings.librdkafka()
        | {"group.id": group}
    )
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while True:
            try:
                found = consumer.committed(places, timeout=TIMEOUT_S)
                error = next((place.error for place in found if place.error is not None), None)
            except KafkaException as exception:
                error = exception.args[0]
            if error is None:
                return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}
            if error.code() not in _NO_COORDINATOR or time.monotonic() > deadline:
                raise KafkaException(error)
            time.sleep(_LOOK_AGAIN_S)
    finally:
        consumer.close()


def end_offsets(settings: KafkaSettings, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """The next offset of each partition of these topics."""
    admin = admin_client(settings)
    metadata = _metadata(admin, settings)
    places = [TopicPartition(t, p) for t in topics for p in metadata.topics[t].partitions]
    return _offsets(admin, places, OffsetSpec.latest())


def _offsets(
    admin: AdminClient, places: list[TopicPartition], spec: OffsetSpec
) -> dict[tuple[str, int], int]:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        futures = admin.list_offsets(dict.fromkeys(places, spec), request_timeout=TIMEOUT_S)
        try:
            return {
                (place.topic, place.partition): future.result().offset for place, future in futures.items()
            }
        except KafkaException as error:
            # A partition has no leader for a moment after its creation and after a broker's return.
            if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                raise
        time.sleep(_LOOK_AGAIN_S)


def _metadata(admin: AdminClient, settings: KafkaSettings) -> Any:  # noqa: ANN401  confluent_kafka's ClusterMetadata
    try:
        return admin.list_topics(timeout=TIMEOUT_S)
    except KafkaException as error:
        raise KafkaUnavailableError(
            f"no answer from Kafka at {settings.bootstrap_servers}: {error.args[0].str()}"
        ) from error


def _partitions(spec: TopicSpec, settings: KafkaSettings) -> int:
    return settings.partitions if spec.copartitioned and settings.partitions else spec.partitions


def _configs(admin: AdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    futures = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    return {
        resource.name: {key: entry.value for key, entry in future.result(TIMEOUT_S).items()}
        for resource, future in futures.items()
    }


def _create(admin: AdminClient, missing: list[TopicStatus], settings: KafkaSettings) -> None:
    new = [
        NewTopic(
            status.name,
            num_partitions=_partitions(status.spec, settings),
            replication_factor=settings.replication_factor or status.spec.replication_factor,
            config={key: str(value) for key, value in status.spec.config.items()},
        )
        for status in missing
    ]
    for future in admin.create_topics(new).values():
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    _wait_for(admin, {topic.topic: topic.num_partitions for topic in new}, settings)


def _wait_for(admin: AdminClient, partitions: dict[str, int], settings: KafkaSettings) -> None:
    """Return when the broker has these topics: the controller answers before, and clients would miss them."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = _metadata(admin, settings).topics
        absent = [name for name, number in partitions.items() if not _has_leaders(found.get(name), number)]
        if not absent:
            return
        if time.monotonic() > deadline:
            raise KafkaUnavailableError(
                f"created, and without a leader after {TIMEOUT_S:g} s: {', '.join(absent)}"
            )
        time.sleep(_LOOK_AGAIN_S)


def _has_leaders(topic: Any, number: int) -> bool:  # noqa: ANN401  confluent_kafka's TopicMetadata
    return topic is not None and sum(each.leader >= 0 for each in topic.partitions.values()) >= number


def _alter(admin: AdminClient, status: TopicStatus) -> None:
    entries = [
        ConfigEntry(key, wanted, incremental_operation=AlterConfigOpType.SET)
        for key, (wanted, _) in status.differences.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, status.name, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
