"""The data plane as a whole, on real processes: what must hold without anything being killed."""

import shutil
import time
from functools import partial

import pytest
from confluent_kafka import Producer
from tests.audit import audit
from tests.pipeline import Feed, Pipeline, seeded, wait_until
from tests.scenario import finish, has_verdicts
from tests.stories import Message, Stream, make_poison, make_stream

from headrace.schemas.topics import topic_specs

pytestmark = pytest.mark.integration


def test_a_graceful_stop_ends_well_and_repeats_nothing(pipeline: Pipeline) -> None:
    with seeded("graceful stop") as rng:
        stream = make_stream(rng, num_attempts=240, num_waves=3)
        feed = Feed(pipeline, stream)
        assembler, sink = pipeline.assembler(), pipeline.sink()
        share = len(stream.stories) / len(stream.waves)
        for number in range(len(stream.waves)):
            assembler.start()
            sink.start()
            feed.release()
            target = int(share * (number + rng.uniform(0.05, 0.6)))
            wait_until(partial(has_verdicts, pipeline, target), what=f"{target} verdicts")
            for process in (assembler, sink):
                began = time.monotonic()
                process.stop()
                assert process.exit_status == 0, process.tail()
                assert time.monotonic() - began < 8
        assembler.start()
        sink.start()
        assert finish(pipeline, stream, feed) == {"trajectories": 0}


def test_a_replay_from_offset_0_gives_the_same_verdicts(pipeline: Pipeline) -> None:
    """G4, C11: state, changelog and offsets gone, every record is processed again; the views stay."""
    with seeded("replay") as rng:
        stream = make_stream(rng, num_attempts=160, num_waves=1)
        feed = Feed(pipeline, stream)
        assembler, sink = pipeline.assembler().start(), pipeline.sink().start()
        finish(pipeline, stream, feed)
        for process in (assembler, sink):
            process.stop()
        shutil.rmtree(pipeline.state_of(1))
        pipeline.forget_groups()
        # Other batches than the first time, so that tokens are of no help.
        assembler = pipeline.assembler(HEADRACE_HOST_BATCH_MAX_RECORDS="500").start()
        pipeline.sink(HEADRACE_SINK_MAX_BATCH_ROWS="1000").start()
        pipeline.settle(2 * len(stream.stories), num_verdicts=len(stream.stories))
        repeats = audit(pipeline, stream, replayed=True)
        assert repeats["trajectories"] == len(stream.stories)


def test_nothing_but_bad_records(pipeline: Pipeline) -> None:
    """C9, C13: each becomes a dead letter, up to the largest that fits into Kafka, and lag reaches zero."""
    with seeded("poison") as rng:
        poison, strays = make_poison(rng, 120)
        # By a program that knows only the broker's limit: no dead letter around it fits into that.
        limit = int(topic_specs()["spans"].config["max.message.bytes"])
        largest = [
            Message(name, b"largest", rng.randbytes(limit - 300)) for name in ("spans", "trajectories")
        ]
        # This one is small in Kafka and would not fit into a dead letter at all.
        largest.append(Message("rewards", b"zeros", bytes(20_000_000)))
        foreign = Producer(
            {"message.max.bytes": 30_000_000, "compression.type": "zstd"} | pipeline.kafka.librdkafka()
        )
        for topic, key, value, _ in largest:
            foreign.produce(pipeline.topic(topic), key=key, value=value)
        assert foreign.flush(30) == 0
        stream = Stream([], [(poison, [])], [], [*poison, *largest], strays)
        assembler, sink = pipeline.assembler().start(), pipeline.sink().start()
        Feed(pipeline, stream).finish()
        pipeline.settle(0)
        audit(pipeline, stream)
        assert (assembler.running, sink.running) == (True, True)
