"""publisher_spans_per_s: from the first `publish` until `flush` has returned, one thread, one process.

Spans are built beforehand; encoding them, compressing them and every acknowledgement (acks=all, idempotent,
zstd) count.
"""

import time
from collections.abc import Iterator

from tests.bench.figures import Figure
from tests.bench.parts import Parts, say
from tests.bench.records import spans

from headrace.streams.client import Publisher

SPANS = 150_000
_BUILT = 30_000


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    rounds = max(1, round(SPANS * scale / _BUILT))
    built = spans(min(_BUILT, max(100, round(SPANS * scale))))
    with parts.lane("publisher") as lane, Publisher(lane.kafka) as publisher:
        size = len(publisher.codec.encode(built[0], lane.topic("spans")))
        publisher.publish(built[0])
        publisher.flush()  # connected
        began = time.perf_counter()
        for _ in range(rounds):
            for span in built:
                publisher.publish(span)
        handed_over = time.perf_counter()
        publisher.flush()
        took = time.perf_counter() - began
    num = rounds * len(built)
    say(
        f"publisher: {num} spans of {size} B in {took:.2f} s, "
        f"{took - handed_over + began:.2f} s of it in flush"
    )
    yield Figure("publisher_spans_per_s", num / took, "spans/s")
