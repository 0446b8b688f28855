"""Runs in the peer's own environment: rollouts through Agent-Lightning's store, by its own runner's loop.

`agentlightning_rollouts.py ROLLOUTS RUNNERS...` prints one JSON object on its last line: rollouts per second
by the number of runners. Its store is served over HTTP by a process of its own; the runners share a loop in
another, which on few cores is faster than a process each. The agent does nothing, nothing is traced, and the
runners find all rollouts queued, so that none waits for its next poll. The time goes from the first
`enqueue_rollout` until the store has answered that each has succeeded.
"""

import asyncio
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentlightning import (  # type: ignore[import-not-found]  # there, not here
    LightningStoreClient,
    LitAgent,
    LitAgentRunner,
)
from agentlightning.tracer.dummy import DummyTracer  # type: ignore[import-not-found]
from tests.bench.agentlightning_store import START_TIMEOUT_S, serve

ENQUEUE_AT_ONCE = 16
WARM_UP = 100


class NoTracer(DummyTracer):  # type: ignore[misc]
    @asynccontextmanager
    async def trace_context(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        yield

    def get_last_trace(self) -> list[Any]:
        return []


class Idle(LitAgent):  # type: ignore[misc]
    def is_async(self) -> bool:
        return True

    async def training_rollout_async(self, *_: Any, **__: Any) -> None:
        """Whatever the task."""


async def measure(endpoint: str, num_rollouts: int, num_runners: int) -> float:
    """Rollouts per second."""
    client = LightningStoreClient(endpoint)
    try:
        await client.add_resources({})
        runners = []
        for number in range(num_runners):
            share = len(range(number, num_rollouts, num_runners))
            runner = LitAgentRunner(NoTracer(), max_rollouts=share, heartbeat_launch_mode="asyncio")
            runner.init(Idle())
            runner.init_worker(number, client)
            runners.append(runner)
        tasks = iter(range(num_rollouts))
        ids: list[str] = []

        async def enqueue() -> None:
            for task in tasks:
                queued = await client.enqueue_rollout(input={"task": task}, mode="train")
                ids.append(queued.rollout_id)

        began = time.perf_counter()
        await asyncio.gather(*(enqueue() for _ in range(ENQUEUE_AT_ONCE)))
        await asyncio.gather(*(runner.iter() for runner in runners))
        took = time.perf_counter() - began
        done = await client.query_rollouts(rollout_id_in=ids, status_in=["succeeded"])
    finally:
        await client.close()
    if len(done) != num_rollouts:
        raise SystemExit(f"{len(done)} of {num_rollouts} rollouts succeeded")
    return num_rollouts / took


def main() -> None:
    logging.disable(logging.WARNING)
    num_rollouts, *nums_runners = map(int, sys.argv[1:])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    try:
        if not ours.poll(START_TIMEOUT_S):
            raise SystemExit(f"no server after {START_TIMEOUT_S} s")
        endpoint = ours.recv()
        asyncio.run(measure(endpoint, WARM_UP, 8))
        found = {num: asyncio.run(measure(endpoint, num_rollouts, num)) for num in nums_runners}
    finally:
        ours.close()
        server.join(10)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
