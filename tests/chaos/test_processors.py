"""Processors killed -9 while events flow: nothing lost, nothing twice, the same verdicts (G4, G5, G8)."""

import os
import shutil
import signal
from functools import partial

import pytest
from tests.pipeline import Feed, Pipeline, seeded, wait_until
from tests.scenario import finish, has_rows, has_verdicts, num_said
from tests.stories import make_stream

pytestmark = [pytest.mark.chaos, pytest.mark.integration]


@pytest.mark.parametrize("state", ["kept", "deleted"])
def test_assembler_is_killed(pipeline: Pipeline, state: str) -> None:
    with seeded(f"assembler killed, state {state}") as rng:
        stream = make_stream(rng, num_attempts=240)
        feed = Feed(pipeline, stream)
        sink = pipeline.sink().start()
        assembler = pipeline.assembler()
        share = len(stream.stories) / len(stream.waves)
        for number in range(len(stream.waves)):
            assembler.start()
            feed.release()
            # Two in three need no deadline: so many come while the wave flows.
            target = int(share * (number + rng.uniform(0.05, 0.6)))
            wait_until(partial(has_verdicts, pipeline, target), what=f"{target} verdicts")
            assembler.kill()
            if state == "deleted":
                shutil.rmtree(pipeline.state_of(1))
        assembler.start()
        finish(pipeline, stream, feed)
        assert (assembler.running, sink.running) == (True, True)


def test_sink_is_killed(pipeline: Pipeline) -> None:
    with seeded("sink killed") as rng:
        stream = make_stream(rng, num_attempts=240)
        feed = Feed(pipeline, stream)
        assembler = pipeline.assembler().start()
        sink = pipeline.sink()
        share = sum(message.topic == "spans" for early, _ in stream.waves for message in early) / 4
        for number in range(len(stream.waves)):
            sink.start()
            feed.release()
            target = int(share * (number + rng.uniform(0.05, 0.9)))
            wait_until(partial(has_rows, pipeline, target), what=f"{target} rows")
            sink.kill()
        sink.start()
        finish(pipeline, stream, feed)
        assert (assembler.running, sink.running) == (True, True)


def test_partitions_change_hands(pipeline: Pipeline) -> None:
    """C12: members come, leave, die and freeze; whoever wakes too late finds its work taken."""
    with seeded("partitions change hands") as rng:
        stream = make_stream(rng, num_attempts=300, num_waves=5)
        feed = Feed(pipeline, stream)
        share = len(stream.stories) / len(stream.waves)

        def flow(number: int) -> None:
            """Let a wave in, and return at a random point of it."""
            feed.release()
            target = int(share * (number + rng.uniform(0.05, 0.5)))
            wait_until(partial(has_verdicts, pipeline, target), what=f"{target} verdicts")

        assemblers = [pipeline.assembler(number) for number in range(3)]
        sinks = [pipeline.sink(number) for number in range(3)]
        assemblers[0].start()
        sinks[0].start()
        flow(0)
        assemblers[1].start()
        sinks[1].start()
        flow(1)
        assemblers[0].stop()
        sinks[0].kill()
        assert assemblers[0].exit_status == 0
        flow(2)
        os.kill(sinks[1].pid or 0, signal.SIGSTOP)
        assemblers[2].start()
        sinks[2].start()
        flow(3)
        assemblers[1].kill()
        wait_until(lambda: num_said(sinks[2], "assigned") > 0, what="the third sink to take over")
        os.kill(sinks[1].pid or 0, signal.SIGCONT)
        flow(4)
        sinks[0].start()
        finish(pipeline, stream, feed)
        assert all(process.running for process in (assemblers[2], *sinks))
