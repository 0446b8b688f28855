"""Drives the host as real processes over real topics."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PROGRAM = Path(__file__).with_name("pairing.py")
PARTITIONS = 4


def wait_until(condition: Callable[[], bool], *, what: str, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


class Log:
    """The topics of one test, read and written by ordinary clients."""

    def __init__(
        self,
        bootstrap_servers: str,
        prefix: str,
        *,
        partitions: int = PARTITIONS,
        with_out: bool = True,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.prefix = prefix
        self.group = f"{prefix}-pairing"
        self.changelog = f"{self.group}-state-changelog"
        self.sources = [f"{prefix}.a", f"{prefix}.b"]
        self.out = f"{prefix}.out"
        self.ticks = f"{prefix}.ticks"
        self.partitions = partitions
        self._base = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        admin = AdminClient(self._base)
        names = [*self.sources, self.out] if with_out else self.sources
        topics = [NewTopic(topic, partitions, 1) for topic in names]
        for created in admin.create_topics([*topics, NewTopic(self.ticks, 1, 1)]).values():
            created.result()
        self._committed = Consumer({**self._base, "group.id": self.group, "enable.auto.commit": False})
        self._readers: dict[str, tuple[Consumer, list[Message]]] = {}

    def close(self) -> None:
        self._committed.close()
        for reader, _ in self._readers.values():
            reader.close()

    def publish(self, records: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Publish (topic suffix, key, value) and wait until all are acknowledged."""
        producer = Producer({**self._base, "partitioner": "murmur2_random", "linger.ms": 20})
        for topic, key, value in records:
            producer.produce(
                f"{self.prefix}.{topic}", key=key, value=value, headers=[("traceparent", b"00-1")]
            )
            producer.poll(0)
        assert producer.flush(30) == 0

    def publish_pairs(self, ids: range) -> None:
        for topic in "ab":
            self.publish((topic, b"k%d" % (i % 97), b"id/%d" % i) for i in ids)

    def committed(self) -> dict[tuple[str, int], int]:
        tps = [TopicPartition(t, p) for t in self.sources for p in range(self.partitions)]
        try:
            found = self._committed.committed(tps, timeout=10)
        except KafkaException:
            return {}
        return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}

    def lag(self) -> int:
        """Return the records not committed; -1 if the broker does not say."""
        committed = self.committed()
        try:
            return sum(self._end(tp) - offset for tp, offset in committed.items()) if committed else -1
        except KafkaException:
            return -1

    def count(self, topic: str) -> int:
        """Return the number of records without reading them."""
        return sum(self._end((topic, partition)) for partition in range(self.partitions))

    def _end(self, tp: tuple[str, int]) -> int:
        end: int = self._committed.get_watermark_offsets(TopicPartition(*tp), timeout=10)[1]
        return end

    def read(self, topic: str) -> list[Message]:
        """Return all records so far, those of earlier calls included."""
        if topic not in self._readers:
            self._readers[topic] = self._open(topic)
        reader, messages = self._readers[topic]
        while more := reader.consume(10_000, timeout=0.2):
            messages += [message for message in more if message.error() is None]
        return messages

    def _open(self, topic: str) -> tuple[Consumer, list[Message]]:
        reader = Consumer({**self._base, "group.id": "reader", "enable.partition.eof": True})
        partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
        reader.assign([TopicPartition(topic, p, 0) for p in partitions])
        messages: list[Message] = []
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            for message in reader.consume(10_000, timeout=0.2):
                if message.error() is None:
                    messages.append(message)
                else:
                    at_end.add(message.partition() or 0)
        return reader, messages

    def outputs(self) -> dict[bytes, list[bytes]]:
        """Return, for each id, what was put out for it."""
        found = defaultdict(list)
        for message in self.read(self.out):
            name, _, pair = (message.value() or b"").partition(b"=")
            found[name].append(pair)
        return found

    def expected(self) -> dict[bytes, bytes]:
        """Return, for each id, the output that follows from the source topics."""
        offsets: dict[bytes, dict[str, bytes]] = defaultdict(dict)
        for topic in self.sources:
            for message in self.read(topic):
                mark = b"%s@%d" % (topic[-1].encode(), message.offset() or 0)
                offsets[message.value() or b""][topic] = mark
        return {name: b"+".join(sorted(marks.values())) for name, marks in offsets.items()}


class HostProcess:
    """The program as a child process; `settings` are fields of HostSettings."""

    def __init__(self, log: Log, folder: Path, **settings: object) -> None:
        self._folder = folder
        self.state_dir = folder / "state"
        defaults = {
            "state_dir": self.state_dir,
            "session_timeout_s": 1.5,
            "heartbeat_interval_s": 0.4,
            "commit_interval_s": 0.2,
        }
        fields = {f"HEADRACE_HOST_{k.upper()}": str(v) for k, v in (defaults | settings).items()}
        kafka = {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": log.bootstrap_servers,
            "HEADRACE_KAFKA_TOPIC_PREFIX": log.prefix,
        }
        self._environment = {**os.environ, **kafka, **fields}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM)], env=self._environment, stdout=log, stderr=log
            )

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self, timeout_s: float = 20.0) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float = 30.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    def said(self) -> str:
        return (self._folder / "log").read_text()
