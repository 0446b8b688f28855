"""Kafka and ClickHouse killed -9 while events flow: who depends on them waits, and nothing is lost."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.pipeline import Feed, Pipeline, seeded, wait_until
from tests.scenario import finish, has_rows, has_verdicts, num_said
from tests.stories import make_stream

from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

pytestmark = [pytest.mark.chaos, pytest.mark.integration]


def test_clickhouse_is_killed(
    kafka: KafkaBroker, clickhouse_factory: Callable[[], ClickHouseServer], topic_prefix: str, tmp_path: Path
) -> None:
    """C8, C10: the sink pauses and commits nothing meanwhile, the rest goes on, Kafka is the buffer."""
    server = clickhouse_factory()
    server.start()
    places = (
        KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix),
        ClickHouseSettings(port=server.port),
    )
    with seeded("ClickHouse killed") as rng, Pipeline(*places, tmp_path) as pipeline:
        stream = make_stream(rng, num_attempts=240)
        feed = Feed(pipeline, stream)
        assembler, sink = pipeline.assembler().start(), pipeline.sink().start()
        pid = sink.pid
        share = sum(message.topic == "spans" for early, _ in stream.waves for message in early) / 4

        feed.release()
        wait_until(partial(has_rows, pipeline, int(share * rng.uniform(0.05, 0.9))), what="rows")
        server.kill()
        feed.release()
        wait_until(lambda: num_said(sink, "paused") > 0, what="the sink to pause")
        committed = pipeline.committed("sink")
        wait_until(lambda: num_said(sink, "paused") >= 5, what="the sink to try five times")
        wait_until(lambda: pipeline.lag("assembler") == 0, what="the assembler to go on meanwhile")
        assert pipeline.committed("sink") == committed
        server.start()

        for number in (2, 3):
            feed.release()
            target = int(share * (number + rng.uniform(0.05, 0.9)))
            wait_until(partial(has_rows, pipeline, target), what=f"{target} rows")
            assert sink.pid == pid
            server.kill()
            if number == 3:
                # Now the sink as well: what it had read and not written is in Kafka alone.
                sink.kill()
                sink.start()
            server.start()
        finish(pipeline, stream, feed)
        assert (assembler.running, sink.running) == (True, True)


def test_kafka_is_killed(
    kafka_factory: Callable[[], KafkaBroker], clickhouse: ClickHouseServer, database: str, tmp_path: Path
) -> None:
    """The publisher keeps what it was given, and the processors come back by themselves."""
    broker = kafka_factory()
    broker.start()
    places = (
        KafkaSettings(bootstrap_servers=broker.bootstrap_servers),
        ClickHouseSettings(port=clickhouse.port, database=database),
    )
    with seeded("Kafka killed") as rng, Pipeline(*places, tmp_path) as pipeline:
        stream = make_stream(rng, num_attempts=240)
        feed = Feed(pipeline, stream)
        assembler, sink = pipeline.assembler().start(), pipeline.sink().start()
        pids = assembler.pid, sink.pid
        share = len(stream.stories) / len(stream.waves)
        for number in range(2):
            feed.release()
            target = int(share * (2 * number + rng.uniform(0.05, 0.6)))
            wait_until(partial(has_verdicts, pipeline, target), what=f"{target} verdicts")
            broker.kill()
            feed.release()
            broker.start()
        finish(pipeline, stream, feed)
        assert (assembler.running, sink.running) == (True, True)
        assert (assembler.pid, sink.pid) == pids
        broker.kill()
        for process in (assembler, sink):
            process.stop()
        # The assembler fails if it was in the middle of something; neither waits to be killed.
        assert assembler.exit_status in {0, 1}
        assert sink.exit_status == 0
