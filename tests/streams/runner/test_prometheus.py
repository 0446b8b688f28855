"""What a runner counts."""

from prometheus_client import CollectorRegistry

from headrace.streams.runner.prometheus import PrometheusMetrics


def test_metrics_by_their_names() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    metrics.started()
    metrics.running(3)
    metrics.abandoned(1)
    metrics.skipped("started")
    metrics.ended("succeeded", 2.0)
    metrics.ended("timeout", 5.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_runner_{name}", labels)

    assert value("attempts_started_total") == 1
    assert value("attempts_running") == 3
    assert value("agents_abandoned") == 1
    assert value("tasks_skipped_total", why="started") == 1
    assert value("attempts_ended_total", status="succeeded") == 1
    assert value("attempt_seconds_sum", status="timeout") == 5.0
