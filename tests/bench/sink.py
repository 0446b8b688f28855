"""sink_rows_per_s: one process catches up with a log of 1 KB spans that is full already.

From the moment the broker has given its member the partitions to the moment at which the last row is in the
table. Its peer inserts the same rows into the same table of another database with clickhouse-connect, from
columns built beforehand, in batches of the size that the sink turned out to make, over as many connections.
"""

import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.bench.figures import Figure, Peer
from tests.bench.parts import Lane, Parts, say
from tests.bench.records import spans
from tests.bench.watch import Watch, wait_until

from headrace.cli.stack.ports import pick
from headrace.schemas.records import Generation, Span
from headrace.streams.clickhouse import connect
from headrace.streams.client import Publisher
from headrace.streams.processors.sink.settings import SinkSettings
from headrace.streams.settings import ClickHouseSettings

ROWS = 200_000


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    rows = spans(max(200, round(ROWS * scale)))
    with parts.lane("sink") as lane:
        rate, batch_rows = _sink(lane, rows)
    raw = _raw(parts.tables("sink_raw"), rows, batch_rows)
    yield Figure("sink_rows_per_s", rate, "rows/s", Peer("raw_insert", raw))


def _sink(lane: Lane, rows: Sequence[Span]) -> tuple[float, int]:
    """Rows per second, and rows per batch."""
    with Publisher(lane.kafka) as publisher:
        for row in rows:
            publisher.publish(row)
    say(f"sink: {len(rows)} spans are in the log")
    watch, port = Watch(lane.kafka), pick()
    process = lane.start("sink", HEADRACE_SINK_METRICS_PORT=str(port))
    assigned = wait_until(
        lambda: watch.is_assigned(lane.group("sink")), what="an assignment", processes=[process]
    )
    client = connect(lane.clickhouse)
    last = wait_until(
        lambda: int(client.command("SELECT count() FROM spans_log")) >= len(rows),
        what=f"{len(rows)} rows",
        processes=[process],
    )
    client.close()
    batch_rows = round(
        _metric(port, "headrace_sink_batch_rows_sum") / _metric(port, "headrace_sink_batch_rows_count")
    )
    say(f"sink: {last - assigned:.2f} s in batches of {batch_rows} rows")
    return len(rows) / (last - assigned), batch_rows


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _raw(clickhouse: ClickHouseSettings, rows: Sequence[Span], batch_rows: int) -> float:
    batches = [_columns(rows[at : at + batch_rows]) for at in range(0, len(rows), batch_rows)]
    num_connections = SinkSettings().num_writers
    clients = [connect(clickhouse) for _ in range(num_connections)]

    def insert(number: int) -> None:
        for batch in batches[number::num_connections]:
            clients[number].insert(
                "spans_log",
                list(batch.values()),
                column_names=list(batch),
                column_oriented=True,
                settings={"async_insert": 0},
            )

    with ThreadPoolExecutor(num_connections) as pool:
        began = time.perf_counter()
        for _ in pool.map(insert, range(num_connections)):
            pass
        took = time.perf_counter() - began
    found = int(clients[0].command("SELECT count() FROM spans_log"))
    if found != len(rows):
        raise RuntimeError(f"the raw insert left {found} of {len(rows)} rows")
    for client in clients:
        client.close()
    say(f"sink: raw insert {took:.2f} s")
    return len(rows) / took


def _columns(rows: Sequence[Span]) -> dict[str, list[Any]]:
    """The columns of the table, as the sink fills them."""
    of_span = (
        "rollout_id", "attempt_id", "sequence_id", "kind", "trace_id", "span_id", "parent_span_id", "name",
        "start_time", "end_time", "status", "status_message", "attributes", "resource_attributes", "scope",
    )  # fmt: skip
    columns: dict[str, list[Any]] = {
        "kafka_partition": [0] * len(rows),
        "kafka_offset": list(range(len(rows))),
        "kafka_timestamp": [row.end_time for row in rows],
        **{name: [getattr(row, name) for row in rows] for name in of_span},
        "events.name": [[] for _ in rows],
        "events.time": [[] for _ in rows],
        "events.attributes": [[] for _ in rows],
        "links.trace_id": [[] for _ in rows],
        "links.span_id": [[] for _ in rows],
        "links.attributes": [[] for _ in rows],
        "has_generation": [True] * len(rows),
    }
    for name in Generation.model_fields:
        columns[name] = [getattr(row.generation, name) for row in rows]
    return columns
