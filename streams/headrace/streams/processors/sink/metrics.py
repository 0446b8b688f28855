"""Prometheus metrics of the sink."""

from prometheus_client import Counter, Gauge, Histogram

ROWS = Counter("headrace_sink_records", "Records whose rows ClickHouse has acknowledged", ["topic"])
INSERTS = Counter("headrace_sink_batches", "Batches written", ["topic"])
DEAD_LETTERS = Counter("headrace_sink_dead_letters", "Records sent to dead-letters", ["topic", "reason"])
RETRIES = Counter(
    "headrace_sink_retries", "Times that the sink paused because something did not answer", ["what"]
)
BATCH_ROWS = Histogram(
    "headrace_sink_batch_rows", "Records in a batch", buckets=(1, 10, 100, 1000, 5000, 10_000, 25_000, 50_000)
)
LAG_RECORDS = Gauge(
    "headrace_sink_lag_records", "Records of a partition not read yet", ["topic", "partition"]
)
LAG_SECONDS = Gauge(
    "headrace_sink_lag_seconds",
    "Age of the last record written of a partition that is behind; 0 when it is not",
    ["topic", "partition"],
)
