"""freshness_p50_ms and freshness_p99_ms: from the call of `publish` until a query of the view finds the row.

Spans come at a steady rate, in a few rollouts, and are looked for all the time. A partition's rows become
visible in its order, so that the highest sequence id found tells of all before it. A look's own time counts.
"""

import threading
import time
from collections.abc import Iterator
from functools import partial

from tests.bench.background import background
from tests.bench.figures import Figure
from tests.bench.parts import Lane, Parts, say
from tests.bench.statistics import quantile
from tests.bench.watch import Watch, wait_until
from tests.builders import Attempt

from headrace.cli.stack.processor import ProcessorProcess
from headrace.streams.clickhouse import connect
from headrace.streams.client import Publisher

RATE_PER_S = 100
SAMPLES = 1_500
_MIN_SAMPLES = 300
_WARM_UP = 200
_ROLLOUTS = 8
_LOOK_EVERY_S = 0.02

Place = tuple[str, int]
"""Rollout and sequence id."""


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    num = _WARM_UP + max(_MIN_SAMPLES, round(SAMPLES * scale))
    with parts.lane("freshness") as lane:
        watch, process = Watch(lane.kafka), lane.start("sink")
        wait_until(lambda: watch.is_assigned(lane.group("sink")), what="an assignment", processes=[process])
        published, seen = _run(lane, process, num)
    delays_ms = [(seen[place] - moment) * 1000 for place, moment in published.items()][_WARM_UP:]
    say(f"freshness: {len(delays_ms)} samples at {RATE_PER_S}/s, worst {max(delays_ms):.0f} ms")
    yield Figure("freshness_p50_ms", quantile(delays_ms, 0.5), "ms")
    yield Figure("freshness_p99_ms", quantile(delays_ms, 0.99), "ms")


def _run(lane: Lane, process: ProcessorProcess, num: int) -> tuple[dict[Place, float], dict[Place, float]]:
    """The moments at which each span was published and first seen."""
    published: dict[Place, float] = {}
    seen: dict[Place, float] = {}
    with background(partial(_look, lane, seen)) as check:

        def all_seen() -> bool:
            check()
            return len(seen) >= num

        _publish(lane, num, published)
        wait_until(all_seen, what=f"{num} rows in the view", processes=[process], limit_s=60)
    return published, seen


def _publish(lane: Lane, num: int, published: dict[Place, float]) -> None:
    attempts = [Attempt(f"freshness-{number}") for number in range(_ROLLOUTS)]
    with Publisher(lane.kafka) as publisher:
        began = time.perf_counter()
        for number in range(num):
            attempt = attempts[number % _ROLLOUTS]
            span = attempt.call(number // _ROLLOUTS + 1, tuple(range(96)), tuple(range(24)))
            time.sleep(max(0.0, began + number / RATE_PER_S - time.perf_counter()))
            published[attempt.rollout_id, span.sequence_id or 0] = time.perf_counter()
            publisher.publish(span)


def _look(lane: Lane, seen: dict[Place, float], over: threading.Event) -> None:
    client = connect(lane.clickhouse)
    highest: dict[str, int] = {}
    while not over.wait(_LOOK_EVERY_S):
        found = client.query("SELECT rollout_id, max(sequence_id) FROM spans GROUP BY rollout_id").result_rows
        now = time.perf_counter()
        for rollout_id, sequence_id in found:
            for number in range(highest.get(rollout_id, 0) + 1, sequence_id + 1):
                seen[rollout_id, number] = now
            highest[rollout_id] = sequence_id
    client.close()
