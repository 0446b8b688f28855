"""The sink's loop on real Kafka and ClickHouse: which ranges it inserts, whatever happens between the steps.

Steps are: intent committed, insert, progress committed (G5, C10, C11).
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.builders import CODEC, Attempt
from tests.pipeline import SINK, Pipeline, wait_until

from headrace.streams.clickhouse import connect
from headrace.streams.client.publisher import Publisher
from headrace.streams.processors.sink.settings import SinkSettings
from headrace.streams.processors.sink.sink import Sink
from headrace.streams.processors.sink.writer import ClickHouseWriter

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("failing_sink.py")
NUM_SPANS = 400


class Noted(NamedTuple):
    """A batch that the sink began to write."""

    partition: int
    first: int
    last: int
    num_records: int


class FailingSink:
    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self._pipeline = pipeline
        self._journal = folder / "journal"
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, point: str = "none", number: int = 0, *, max_batch_rows: int = 30) -> None:
        environment = {
            **os.environ,
            **SINK,
            **self._pipeline.places(),
            "HEADRACE_SINK_MAX_BATCH_ROWS": str(max_batch_rows),
            "HEADRACE_SINK_NUM_WRITERS": "1",
        }
        command = [sys.executable, str(PROGRAM), str(self._journal), point, str(number)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(30)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def noted(self) -> list[Noted]:
        lines = self._journal.read_text().splitlines()
        found = [re.fullmatch(r".*:(\d+):(\d+)-(\d+) (\d+)", line) for line in lines]
        return [Noted(*map(int, match.groups())) for match in found if match]


@pytest.fixture
def failing_sink(pipeline: Pipeline, tmp_path: Path) -> Iterator[FailingSink]:
    made = FailingSink(pipeline, tmp_path)
    yield made
    made.kill()


def publish_spans(pipeline: Pipeline) -> None:
    with Publisher(pipeline.kafka) as publisher:
        for number in range(NUM_SPANS):
            publisher.publish(Attempt(f"{pipeline.kafka.topic_prefix}-{number % 50}").call(number // 50 + 1))


def assert_each_range_once(pipeline: Pipeline, noted: list[Noted]) -> None:
    """The distinct ranges cover each partition without overlap, and what was repeated was the same."""
    by_partition: dict[int, set[Noted]] = defaultdict(set)
    for each in noted:
        by_partition[each.partition].add(each)
    assert sum(each.num_records for ranges in by_partition.values() for each in ranges) == NUM_SPANS
    for ranges in by_partition.values():
        expected = 0
        for each in sorted(ranges):
            assert (each.first, each.num_records) == (expected, each.last - each.first + 1)
            expected = each.last + 1
    client = pipeline.client()
    assert client.query("SELECT count() FROM spans_log").first_row == (NUM_SPANS,)
    client.close()


@pytest.mark.chaos
@pytest.mark.parametrize("max_batch_rows", [7, 100], ids=["then smaller batches", "then larger batches"])
@pytest.mark.parametrize("point", ["before", "after"])
def test_the_range_of_a_killed_sink_is_replayed_exactly(
    pipeline: Pipeline, failing_sink: FailingSink, point: str, max_batch_rows: int
) -> None:
    publish_spans(pipeline)
    failing_sink.start(point, 3)
    assert failing_sink.wait() == -signal.SIGKILL
    killed = failing_sink.noted()[-1]
    assert len(failing_sink.noted()) == 3
    failing_sink.start(max_batch_rows=max_batch_rows)
    wait_until(lambda: pipeline.lag("sink") == 0, what="no lag")
    assert failing_sink.stop() == 0
    again = failing_sink.noted()[3:]
    assert next(each for each in again if each.partition == killed.partition) == killed
    assert_each_range_once(pipeline, failing_sink.noted())


def test_an_insert_without_an_answer_is_tried_again_under_its_token(
    pipeline: Pipeline, failing_sink: FailingSink
) -> None:
    """C8: in one process, and no later range of the partition goes first."""
    publish_spans(pipeline)
    failing_sink.start("unacknowledged", 2)
    wait_until(lambda: pipeline.lag("sink") == 0, what="no lag")
    assert failing_sink.stop() == 0
    noted = failing_sink.noted()
    assert len(noted) > len(set(noted))
    assert_each_range_once(pipeline, noted)


def test_a_graceful_stop_repeats_nothing(pipeline: Pipeline, failing_sink: FailingSink) -> None:
    publish_spans(pipeline)
    failing_sink.start(max_batch_rows=10)
    wait_until(lambda: pipeline.num_rows() > 0, what="rows")
    assert failing_sink.stop() == 0
    failing_sink.start()
    wait_until(lambda: pipeline.lag("sink") == 0, what="no lag")
    assert failing_sink.stop() == 0
    noted = failing_sink.noted()
    assert len(noted) == len(set(noted))
    assert_each_range_once(pipeline, noted)


class PausingSink(Sink):
    """Pauses what it has, once, as while ClickHouse does not answer."""

    def __init__(self, pipeline: Pipeline, publisher: Publisher) -> None:
        def new_writer() -> ClickHouseWriter:
            return ClickHouseWriter(connect(pipeline.clickhouse), pipeline.clickhouse, CODEC)

        settings = SinkSettings(linger_s=0.05, commit_interval_s=0.2)
        super().__init__(pipeline.kafka, settings, new_writer, publisher)
        self.paused = threading.Event()

    def _measure(self) -> None:
        super()._measure()
        if self._buffers and not self.paused.is_set():
            self._consumer.pause([TopicPartition(*place) for place in self._buffers])
            self.paused.set()


def test_partitions_that_were_paused_when_they_changed_hands_are_read_again(pipeline: Pipeline) -> None:
    """The client gives them back paused. So a sink fell silent after Kafka's death, without an error."""
    stop = threading.Event()
    group = {"group.id": f"{pipeline.kafka.topic_prefix}-sink", "enable.auto.commit": False}
    with Publisher(pipeline.kafka) as publisher:
        sink = PausingSink(pipeline, publisher)
        running = threading.Thread(target=sink.run, args=(stop,))
        running.start()
        try:
            assert sink.paused.wait(30)
            publish_spans(pipeline)
            other = Consumer(pipeline.kafka.librdkafka() | group | {"auto.offset.reset": "earliest"})
            other.subscribe([pipeline.topic("spans")])
            wait_until(lambda: other.poll(0.1) is not None, what="another member with partitions")
            other.close()
            wait_until(lambda: pipeline.lag("sink") == 0, what="no lag")
        finally:
            stop.set()
            running.join()
    assert pipeline.num_rows() == NUM_SPANS
