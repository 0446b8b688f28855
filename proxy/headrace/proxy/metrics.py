"""Prometheus metrics of a proxy: names, types and meaning in one place."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.schemas.records import Generation

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class ProxyMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.calls = Counter(
            "headrace_proxy_calls",
            "Model calls that took a sequence id, by the API spoken and what became of them.",
            ("dialect", "outcome"),
            registry=self.registry,
        )
        self.refused = Counter(
            "headrace_proxy_refused",
            "Requests that were answered with an error of the proxy's own.",
            ("code",),
            registry=self.registry,
        )
        self.call_seconds = Histogram(
            "headrace_proxy_call_seconds",
            "From a call's request to its end, recording included.",
            ("dialect",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.record_seconds = Histogram(
            "headrace_proxy_record_seconds",
            "From the end of an answer until Kafka has acknowledged its spans.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.tokens = Counter(
            "headrace_proxy_tokens", "Token ids captured.", ("kind",), registry=self.registry
        )
        self.untrainable = Counter(
            "headrace_proxy_untrainable",
            "Choices kept and not to be trained on, by reason.",
            ("reason",),
            registry=self.registry,
        )
        self.voids = Counter(
            "headrace_proxy_voids", "Sequence ids of calls that came to nothing.", registry=self.registry
        )
        self.running_calls = Gauge(
            "headrace_proxy_running_calls", "Calls that run now.", registry=self.registry
        )
        self.open_attempts = Gauge(
            "headrace_proxy_open_attempts", "Attempts open now.", registry=self.registry
        )
        self.unacknowledged = Gauge(
            "headrace_proxy_unacknowledged_records",
            "Spans that are on their way to Kafka.",
            registry=self.registry,
        )
        self.engine_calls = Gauge(
            "headrace_proxy_engine_calls", "Calls that run on an engine.", ("engine",), registry=self.registry
        )
        self.engine_serving = Gauge(
            "headrace_proxy_engine_serving",
            "1 if the engine takes calls.",
            ("engine",),
            registry=self.registry,
        )
        self.engine_version = Gauge(
            "headrace_proxy_engine_version",
            "Version of the weights that the engine serves; -1 if unknown.",
            ("engine",),
            registry=self.registry,
        )
        self.engine_gap = Gauge(
            "headrace_proxy_engine_gap",
            "Mean difference of its logprobs to the trainer's, for the version's probe; NaN if unknown.",
            ("engine",),
            registry=self.registry,
        )

    def count(self, generation: Generation) -> None:
        """A choice that was kept."""
        self.tokens.labels("prompt").inc(len(generation.prompt_token_ids))
        self.tokens.labels("completion").inc(len(generation.response_token_ids))
        reason = generation.why_untrainable()
        if reason is not None:
            self.untrainable.labels(reason).inc()
