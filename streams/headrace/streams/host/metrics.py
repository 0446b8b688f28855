"""Prometheus metrics of a host; every one carries the processor's name."""

from collections.abc import Iterable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

_BATCH_RECORDS = (1, 3, 10, 30, 100, 300, 1000, 3000)
_SECONDS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class HostMetrics:
    """Names, types and meaning in one place."""

    def __init__(self, processor: str, registry: CollectorRegistry = REGISTRY) -> None:
        labels = ("processor",)
        self.records = Counter(
            "headrace_host_records", "Records processed, state and outputs kept.", (*labels, "topic"),
            registry=registry,
        )  # fmt: skip
        self.outputs = Counter(
            "headrace_host_outputs", "Outputs acknowledged by the broker.", (*labels, "topic"),
            registry=registry,
        )  # fmt: skip
        self.lag_records = Gauge(
            "headrace_host_lag_records", "Records of an assigned partition not processed yet.",
            (*labels, "topic", "partition"), registry=registry,
        )  # fmt: skip
        self.lag_seconds = Gauge(
            "headrace_host_lag_seconds", "Age of the oldest record of a partition not processed yet.",
            (*labels, "topic", "partition"), registry=registry,
        )  # fmt: skip
        self.changes = Counter(
            "headrace_host_state_changes", "Keys put or deleted in the state.", labels, registry=registry
        ).labels(processor)
        self.batch_records = Histogram(
            "headrace_host_batch_records", "Records in one batch.", labels, registry=registry,
            buckets=_BATCH_RECORDS,
        ).labels(processor)  # fmt: skip
        self.batch_seconds = Histogram(
            "headrace_host_batch_seconds", "From a batch's arrival until it is kept.", labels,
            registry=registry, buckets=_SECONDS,
        ).labels(processor)  # fmt: skip
        self.partitions = Gauge(
            "headrace_host_partitions", "Partition numbers that this process works on.", labels,
            registry=registry,
        ).labels(processor)  # fmt: skip
        self.processor = processor

    def count_records(self, topic: str, num: int) -> None:
        self.records.labels(self.processor, topic).inc(num)

    def count_output(self, topic: str, num: int) -> None:
        self.outputs.labels(self.processor, topic).inc(num)

    def set_lag(self, topic: str, partition: int, records: int, seconds: float) -> None:
        self.lag_records.labels(self.processor, topic, str(partition)).set(records)
        self.lag_seconds.labels(self.processor, topic, str(partition)).set(seconds)

    def clear_lag(self) -> None:
        """Forget every partition: after a rebalance another process reports them."""
        self.lag_records.clear()
        self.lag_seconds.clear()


class EventCounts(Collector):
    """What a processor counts, read when it is asked for."""

    def __init__(
        self, processor: str, counts: Mapping[str, int], registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._processor = processor
        self._counts = counts
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "headrace_processor_events", "What became of records.", labels=("processor", "event")
        )
        # A copy at once: the event loop counts on meanwhile.
        for event, number in dict(self._counts).items():
            family.add_metric((self._processor, event), number)
        yield family
