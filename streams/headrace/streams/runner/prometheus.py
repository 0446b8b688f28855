"""Prometheus metrics of a runner. Needs prometheus-client."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from headrace.schemas.records.rollout import AttemptOutcome
from headrace.streams.runner.metrics import RunnerMetrics

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class PrometheusMetrics(RunnerMetrics):
    """Names, types and meaning in one place."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._started = Counter(
            "headrace_runner_attempts_started", "Attempts whose start the log has.", registry=registry
        )
        self._ended = Counter(
            "headrace_runner_attempts_ended", "Attempts ended, by status.", ["status"], registry=registry
        )
        self._seconds = Histogram(
            "headrace_runner_attempt_seconds", "From an attempt's start to its end.", ["status"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._running = Gauge("headrace_runner_attempts_running", "Attempts at work.", registry=registry)
        self._abandoned = Gauge(
            "headrace_runner_agents_abandoned",
            "Agents that were told to end and have not.",
            registry=registry,
        )
        self._skipped = Counter(
            "headrace_runner_tasks_skipped", "Tasks not run: started already, or ended before.", ["why"],
            registry=registry,
        )  # fmt: skip

    def started(self) -> None:
        self._started.inc()

    def ended(self, status: AttemptOutcome, seconds: float) -> None:
        self._ended.labels(status).inc()
        self._seconds.labels(status).observe(seconds)

    def running(self, number: int) -> None:
        self._running.set(number)

    def abandoned(self, number: int) -> None:
        self._abandoned.set(number)

    def skipped(self, why: str) -> None:
        self._skipped.labels(why).inc()
