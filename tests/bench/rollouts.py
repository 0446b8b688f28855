"""rollouts_per_s_8 and rollouts_per_s_64: an agent that does nothing, from enqueue to finalized trajectory.

From the call of `enqueue` until the trajectories topic has one of each rollout: client, dispatcher, one
runner with 8 or 64 attempts at a time, assembler, all on Kafka. The peer is Agent-Lightning's runner on its
HTTP store, in the same run; its time ends when the rollouts have succeeded, and it assembles nothing.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import peer
from tests.bench.figures import Figure
from tests.bench.parts import Lane, Parts, say
from tests.bench.watch import Watch, wait_until

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.records import RolloutConfig
from headrace.streams.client import Client

ROLLOUTS = 10_000
CONCURRENT = (8, 64)
_CONFIG = RolloutConfig(reward_grace_s=0)
"""There is no reward to wait for."""


def bench(parts: Parts, scale: float, *, with_peer: bool) -> Iterator[Figure]:
    num_rollouts = max(100, round(ROLLOUTS * scale))
    peers = peer.rollouts(CONCURRENT) if with_peer else {}
    for concurrency in CONCURRENT:
        with parts.lane("rollouts") as lane:
            value = _rate(lane, num_rollouts, concurrency)
        yield Figure(f"rollouts_per_s_{concurrency}", value, "rollouts/s", peers.get(concurrency))


def _rate(lane: Lane, num_rollouts: int, concurrency: int) -> float:
    """Rollouts per second, after as many to warm up: the broker's compiler takes thousands."""
    watch, trajectories = Watch(lane.kafka), lane.topic("trajectories")
    arguments = [
        "rollout_agent:idle",
        "--app-dir",
        str(Path(__file__).parent),
        "--concurrency",
        str(concurrency),
    ]
    processes = [lane.start("dispatcher"), lane.start("assembler"), lane.start("runner", *arguments)]
    for group in ("dispatcher", "assembler", "runners"):
        _wait_assigned(lane, watch, group, processes)
    with Client(lane.kafka) as client:
        client.enqueue(range(num_rollouts), config=_CONFIG)
        wait_until(
            lambda: watch.num_records(trajectories) >= num_rollouts, what="the warm-up", processes=processes
        )
        began = time.perf_counter()
        client.enqueue(range(num_rollouts), config=_CONFIG)
        enqueued = time.perf_counter()
        ended = wait_until(
            lambda: watch.num_records(trajectories) >= 2 * num_rollouts,
            what=f"{num_rollouts} trajectories",
            processes=processes,
        )
    took = ended - began
    say(
        f"rollouts: {num_rollouts} in {took:.2f} s, {concurrency} at a time; "
        f"all were enqueued after {enqueued - began:.2f} s"
    )
    return num_rollouts / took


def _wait_assigned(lane: Lane, watch: Watch, group: str, processes: list[ProcessorProcess]) -> None:
    name = lane.group(group)
    wait_until(lambda: watch.is_assigned(name), what=f"an assignment of {group}", processes=processes)
