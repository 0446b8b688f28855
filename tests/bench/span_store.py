"""span_store_per_s: spans durable and queryable, the whole path, from one client.

From the first `publish` until ClickHouse counts every one of them in the view: publisher, Kafka, sink,
ClickHouse. The peer stores spans of the same size in Agent-Lightning's store over HTTP.
"""

import time
from collections.abc import Iterator

from tests.bench import peer
from tests.bench.figures import Figure
from tests.bench.parts import Parts, say
from tests.bench.records import spans
from tests.bench.watch import Watch, wait_until

from headrace.streams.clickhouse import connect
from headrace.streams.client import Publisher

SPANS = 150_000


def bench(parts: Parts, scale: float, *, with_peer: bool) -> Iterator[Figure]:
    rows = spans(max(200, round(SPANS * scale)))
    with parts.lane("span_store") as lane, Publisher(lane.kafka) as publisher:
        watch, process = Watch(lane.kafka), lane.start("sink")
        wait_until(lambda: watch.is_assigned(lane.group("sink")), what="an assignment", processes=[process])
        client = connect(lane.clickhouse)
        began = time.perf_counter()
        for row in rows:
            publisher.publish(row)
        publisher.flush()
        acknowledged = time.perf_counter()
        # The view takes longer to count: it is asked when the table has them all.
        wait_until(
            lambda: (
                int(client.command("SELECT count() FROM spans_log")) >= len(rows)
                and int(client.command("SELECT count() FROM spans")) == len(rows)
            ),
            what=f"{len(rows)} spans in the view",
            processes=[process],
        )
        took = time.perf_counter() - began
        client.close()
    say(
        f"span_store: {len(rows)} spans in {took:.2f} s, "
        f"acknowledged by Kafka after {acknowledged - began:.2f} s"
    )
    yield Figure("span_store_per_s", len(rows) / took, "spans/s", peer.span_store() if with_peer else None)
