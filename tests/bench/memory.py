"""Memory of assembler and sink over a long run: resident size against events processed (C5).

Events are published as fast as the slower of both follows. The first fifth warms up: caches fill, buffers
reach their size. What is given is the size after it, the size at the end, and the slope between.
"""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.background import background
from tests.bench.figures import Figure
from tests.bench.parts import Lane, Parts, say
from tests.bench.records import EVENTS_PER_ATTEMPT, events
from tests.bench.statistics import slope
from tests.bench.watch import Watch, wait_until

from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.service import Service
from headrace.schemas.errors import FatalError
from headrace.streams.client import Publisher

EVENTS = 1_000_000
_LEAD = 50_000
"""Events that may wait in the log."""
_SAMPLE_S = 1.0
_WARM_UP = 0.2
_SOURCES = ("attempts", "spans", "rewards")

Sample = tuple[float, float]
"""Events processed, MiB."""


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    num_attempts = max(64, round(EVENTS * scale) // EVENTS_PER_ATTEMPT)
    num_events = num_attempts * EVENTS_PER_ATTEMPT
    with parts.lane("memory") as lane:
        processes = [lane.start("assembler"), lane.start("sink")]
        samples = _run(lane, processes, num_attempts)
    for name, all_samples in samples.items():
        warm = [sample for sample in all_samples if sample[0] >= num_events * _WARM_UP]
        yield Figure(f"{name}_rss_start_mb", warm[0][1], "MB")
        yield Figure(f"{name}_rss_end_mb", warm[-1][1], "MB")
        yield Figure(f"{name}_rss_slope_mb_per_100k", slope(warm) * 100_000, "MB/100k")


def _run(lane: Lane, processes: list[ProcessorProcess], num_attempts: int) -> dict[str, list[Sample]]:
    watch, topics = Watch(lane.kafka), [lane.topic(name) for name in _SOURCES]
    samples: dict[str, list[Sample]] = {process.name: [] for process in processes}
    num_events = num_attempts * EVENTS_PER_ATTEMPT

    def sample() -> float:
        """Take one of each; return how far the slower one is."""
        for process in processes:
            if not process.running:
                raise FatalError(process.death_notice())
            at = watch.num_committed(lane.group(process.name), *topics)
            samples[process.name].append((at, rss_mb(process)))
        return min(taken[-1][0] for taken in samples.values())

    began = said = time.perf_counter()
    with background(partial(_publish, lane, num_attempts, samples)) as check:
        while (done := sample()) < num_events:
            check()
            if (now := time.perf_counter()) > said + 15:
                said = now
                sizes = ", ".join(f"{name} {taken[-1][1]:.0f} MB" for name, taken in samples.items())
                say(f"memory: {done:.0f} of {num_events} events after {now - began:.0f} s; {sizes}")
            time.sleep(_SAMPLE_S)
    wait_until(
        lambda: watch.num_records(lane.topic("trajectories")) >= num_attempts,
        what=f"{num_attempts} trajectories",
        processes=processes,
    )
    say(f"memory: {num_events} events in {time.perf_counter() - began:.0f} s")
    return samples


def _publish(lane: Lane, num_attempts: int, samples: dict[str, list[Sample]], over: threading.Event) -> None:
    with Publisher(lane.kafka) as publisher:
        for number, event in enumerate(events(num_attempts)):
            while number % 1000 == 0 and number > _LEAD + min(
                taken[-1][0] if taken else 0 for taken in samples.values()
            ):
                if over.wait(_SAMPLE_S / 4):
                    return
            publisher.publish(event)


def rss_mb(process: Service) -> float:
    """Resident memory of the process now."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024
