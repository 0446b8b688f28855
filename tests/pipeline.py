"""The whole data plane of one test: topics, tables and processors as real processes, to be killed at will."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from clickhouse_connect.driver.client import Client
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from tests.builders import CODEC
from tests.stories import Message, Stream

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import AttemptEvent, Reward, Span, Trajectory
from headrace.schemas.topics import topic_name, topic_specs
from headrace.streams.clickhouse import connect, migrate
from headrace.streams.client.admin import admin_client, apply_topics, end_offsets, group_lag, group_offsets
from headrace.streams.client.publisher import Publisher
from headrace.streams.processors.sink.tables import TABLES
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

HOST = {
    # Small and quick, so that a kill finds every step of the loop under way.
    "HEADRACE_HOST_BATCH_MAX_RECORDS": "40",
    "HEADRACE_HOST_COMMIT_INTERVAL_S": "0.1",
    "HEADRACE_HOST_SESSION_TIMEOUT_S": "1.5",
    "HEADRACE_HOST_HEARTBEAT_INTERVAL_S": "0.4",
    "HEADRACE_HOST_WATCHDOG_S": "30",
    "HEADRACE_HOST_SHUTDOWN_TIMEOUT_S": "6",
}
ASSEMBLER = HOST | {"HEADRACE_ASSEMBLER_STRAGGLER_GRACE_S": "0.5"}
SINK = {
    "HEADRACE_SINK_LINGER_S": "0.05",
    "HEADRACE_SINK_MAX_BATCH_ROWS": "60",
    "HEADRACE_SINK_COMMIT_INTERVAL_S": "0.2",
    "HEADRACE_KAFKA_EXTRA": '{"session.timeout.ms": 1500, "heartbeat.interval.ms": 400}',
}


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = 60.0) -> None:
    """Return when the condition holds; AssertionError says what did not come."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


@contextmanager
def seeded(name: str) -> Iterator[random.Random]:
    """A generator whose seed is printed, and may be given again by HEADRACE_TEST_SEED."""
    seed = int(os.environ.get("HEADRACE_TEST_SEED") or random.SystemRandom().randrange(2**32))
    print(f"{name}: HEADRACE_TEST_SEED={seed}")
    yield random.Random(seed)


class Pipeline:
    """Topics under a prefix and a database of its own. A context manager: it ends its processes."""

    def __init__(self, kafka: KafkaSettings, clickhouse: ClickHouseSettings, folder: Path) -> None:
        self.kafka = kafka
        self.clickhouse = clickhouse
        self.folder = folder
        self._processes: list[ProcessorProcess] = []

    def __enter__(self) -> Self:
        apply_topics(self.kafka)
        migrate(self.clickhouse, asset("clickhouse"))
        # A merge would hide a row that was inserted twice.
        client = self.client()
        for table in TABLES.values():
            client.command(f"SYSTEM STOP MERGES {table[0].name}")
        client.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            if error is not None:
                print(f"--- {process.root.name}, exit status {process.exit_status}\n{process.tail()}")

    # --- processes -----------------------------------------------------------------------------------

    def assembler(self, number: int = 1, **env: str) -> ProcessorProcess:
        """Not started yet. Its state is in `state_of`."""
        state = {"HEADRACE_HOST_STATE_DIR": str(self.state_of(number))}
        return self._process("assembler", number, ASSEMBLER | state | env)

    def batcher(self, number: int, /, **env: str) -> ProcessorProcess:
        """Not started yet. Its state is in `state_of`."""
        state = {"HEADRACE_HOST_STATE_DIR": str(self.state_of(number, "batcher"))}
        return self._process("batcher", number, HOST | state | env)

    def sink(self, number: int = 1, **env: str) -> ProcessorProcess:
        return self._process("sink", number, SINK | env)

    def state_of(self, number: int, processor: str = "assembler") -> Path:
        return self.folder / f"{processor}-{number}" / "state"

    def places(self) -> dict[str, str]:
        """Where Kafka and ClickHouse are, for a process's environment."""
        return {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_KAFKA_TOPIC_PREFIX": self.kafka.topic_prefix,
            "HEADRACE_CLICKHOUSE_HOST": self.clickhouse.host,
            "HEADRACE_CLICKHOUSE_PORT": str(self.clickhouse.port),
            "HEADRACE_CLICKHOUSE_DATABASE": self.clickhouse.database,
        }

    def _process(self, name: str, number: int, env: Mapping[str, str]) -> ProcessorProcess:
        process = ProcessorProcess(name, self.folder / f"{name}-{number}", env={**self.places(), **env})
        self._processes.append(process)
        return process

    # --- what has become of it -----------------------------------------------------------------------

    def topic(self, short_name: str) -> str:
        return topic_specs()[short_name].full_name(self.kafka.topic_prefix)

    def num_in(self, *short_names: str) -> int:
        """Records in these topics."""
        return sum(end_offsets(self.kafka, [self.topic(name) for name in short_names]).values())

    def lag(self, group: str) -> int:
        """Records that the group, `assembler`, `batcher` or `sink`, has not committed."""
        name = f"{self.kafka.topic_prefix}-{group}"
        return sum(group_lag(self.kafka, name, self._topics_of(group)).values())

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The group's next offsets, where it has committed any."""
        return group_offsets(self.kafka, f"{self.kafka.topic_prefix}-{group}", self._topics_of(group))

    def _topics_of(self, group: str) -> list[str]:
        records = (AttemptEvent, Span, Reward)
        return {
            "assembler": [topic_name(record, self.kafka.topic_prefix) for record in records],
            "batcher": [topic_name(Trajectory, self.kafka.topic_prefix)],
            "sink": [self.topic(name) for name in TABLES],
        }[group]

    def client(self) -> Client:
        return connect(self.clickhouse)

    def num_rows(self, table: str = "spans_log") -> int:
        client = self.client()
        try:
            return int(client.query(f"SELECT count() FROM {table}").first_row[0])
        finally:
            client.close()

    def read(self, short_name: str) -> list[KafkaMessage]:
        """Every record of a topic, by an ordinary consumer."""
        topic = self.topic(short_name)
        ends = end_offsets(self.kafka, [topic])
        reader = Consumer(
            {"group.id": "reader", "enable.auto.commit": False, "log_level": 0} | self.kafka.librdkafka()
        )
        try:
            reader.assign([TopicPartition(topic, partition, 0) for _, partition in ends])
            messages: list[KafkaMessage] = []
            deadline = time.monotonic() + 60
            while len(messages) < sum(ends.values()):
                assert time.monotonic() < deadline, f"{topic}: {len(messages)} of {sum(ends.values())} read"
                messages += [each for each in reader.consume(10_000, timeout=0.2) if each.error() is None]
        finally:
            reader.close()
        return messages

    def num_verdicts(self) -> int:
        """Attempts that have a trajectory in the log."""
        return len(payloads_of(self.read("trajectories")))

    def forget_groups(self) -> None:
        """Delete what the processors, stopped now, have in Kafka: offsets, and the assembler's changelog."""
        admin = admin_client(self.kafka)
        prefix = self.kafka.topic_prefix
        for deleted in admin.delete_consumer_groups([f"{prefix}-assembler", f"{prefix}-sink"]).values():
            deleted.result()
        for deleted in admin.delete_topics([f"{prefix}-assembler-state-changelog"]).values():
            deleted.result()

    def settle(
        self, num_trajectories: int, *, num_verdicts: int | None = None, timeout_s: float = 90.0
    ) -> None:
        """Return when so many trajectories, of so many attempts, are there and both groups are at the end."""
        attempts = num_trajectories if num_verdicts is None else num_verdicts

        def is_settled() -> bool:
            # Trajectories may be there twice, so that counting them is not enough.
            return (
                self.num_in("trajectories") >= num_trajectories
                and self.lag("assembler") == 0
                and self.num_verdicts() >= attempts
            )

        wait_until(is_settled, what=f"{num_trajectories} verdicts and no lag", timeout_s=timeout_s)
        wait_until(lambda: self.lag("sink") == 0, what="no lag of the sink", timeout_s=timeout_s)


class Feed:
    """Publishes a stream's waves in a thread of its own, each when it is released."""

    def __init__(self, pipeline: Pipeline, stream: Stream) -> None:
        self._pipeline = pipeline
        self._stream = stream
        self._released = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def release(self, number: int = 1) -> None:
        self._released.release(number)

    def finish(self, timeout_s: float = 120.0) -> None:
        """Return when everything is acknowledged; raises what the publisher raised."""
        self.release(len(self._stream.waves))
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"not published within {timeout_s:g} s"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with Publisher(self._pipeline.kafka) as publisher:
                for early, ends in self._stream.waves:
                    self._released.acquire()
                    publish(self._pipeline, publisher, early)
                    publish(self._pipeline, publisher, ends)
        except BaseException as error:  # noqa: BLE001  raised again by `finish`
            self._error = error


def publish(pipeline: Pipeline, publisher: Publisher, messages: Sequence[Message]) -> None:
    """Return when all are acknowledged."""
    for topic, key, value, headers in messages:
        publisher.publish_bytes(pipeline.topic(topic), key, value, headers=dict(headers))
    publisher.flush()


def publish_late(pipeline: Pipeline, stream: Stream) -> None:
    """What comes after the verdicts."""
    assert pipeline.num_verdicts() == len(stream.stories)
    with Publisher(pipeline.kafka) as publisher:
        publish(pipeline, publisher, stream.late)


def payloads_of(messages: Sequence[KafkaMessage]) -> dict[str, Counter[bytes]]:
    """How often each payload came for each attempt; bad records are left out."""
    found: dict[str, Counter[bytes]] = {}
    for message in messages:
        value = message.value()
        with suppress(BadRecordError):
            found.setdefault(CODEC.decode(value, Trajectory).attempt_id, Counter())[value or b""] += 1
    return found


@pytest.fixture
def pipeline(
    kafka: KafkaBroker, clickhouse: ClickHouseServer, topic_prefix: str, database: str, tmp_path: Path
) -> Iterator[Pipeline]:
    """On the session's servers, without processes yet."""
    places = (
        KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix),
        ClickHouseSettings(port=clickhouse.port, database=database),
    )
    with Pipeline(*places, tmp_path) as made:
        yield made
    client = made.client()
    client.command(f"DROP DATABASE {database}")
    client.close()
