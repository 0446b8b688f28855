"""Runs in the peer's own environment: spans into Agent-Lightning's store over HTTP, as its own client does.

`agentlightning_store.py SPANS CONCURRENCY BYTES` prints one JSON object on its last line. Server and client
are a process each, which is faster than threads of one; many requests are under way at once. The store is its
in-memory one: nothing there is durable. The time ends when queries have answered with every span.
"""

import asyncio
import json
import logging
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from agentlightning import (  # type: ignore[import-not-found]  # there, not here
    InMemoryLightningStore,
    LightningStoreClient,
    LightningStoreServer,
    Span,
)

ROLLOUTS = 16
START_TIMEOUT_S = 60


def serve(pipe: Connection) -> None:
    """Serve a store until the other end of the pipe says so, or closes."""

    async def live() -> None:
        server = LightningStoreServer(InMemoryLightningStore(), host="127.0.0.1", launch_mode="thread")
        await server.start()
        pipe.send(server.endpoint)
        await asyncio.to_thread(pipe.poll, None)
        await server.stop()

    asyncio.run(live())


def make_span(n: int, rollout: Any, num_bytes: int) -> Any:
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=n // ROLLOUTS + 1,
        name="chat",
        start_time=float(n),
        end_time=n + 0.5,
        attributes={"gen_ai.operation.name": "chat", "gen_ai.response": "x" * num_bytes},
    )


async def measure(endpoint: str, num_spans: int, concurrency: int, num_bytes: int) -> float:
    """Seconds from the first `add_span` until all are answered and found again."""
    client = LightningStoreClient(endpoint)
    try:
        rollouts = [await client.start_rollout(input={"task": n}) for n in range(ROLLOUTS)]
        spans = iter([make_span(n, rollouts[n % ROLLOUTS], num_bytes) for n in range(num_spans)])

        async def add() -> None:
            for span in spans:
                await client.add_span(span)

        began = time.perf_counter()
        await asyncio.gather(*(add() for _ in range(concurrency)))
        found = sum([len(await client.query_spans(rollout.rollout_id)) for rollout in rollouts])
        took = time.perf_counter() - began
    finally:
        await client.close()
    if found != num_spans:
        raise SystemExit(f"{found} of {num_spans} spans were found")
    return took


def main() -> None:
    logging.disable(logging.WARNING)
    num_spans, concurrency, num_bytes = map(int, sys.argv[1:])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    theirs.close()
    try:
        if not ours.poll(START_TIMEOUT_S):
            raise SystemExit(f"no server after {START_TIMEOUT_S} s")
        took = asyncio.run(measure(ours.recv(), num_spans, concurrency, num_bytes))
    finally:
        ours.close()
        server.join(10)
    print(json.dumps({"spans": num_spans, "seconds": took}))


if __name__ == "__main__":
    main()
