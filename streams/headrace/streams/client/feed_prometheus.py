"""Prometheus metrics of a feeder. Needs prometheus-client."""

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from headrace.streams.client.feed_progress import FeedProgress
from headrace.streams.client.feed_validation import ValidationReport


class FeedMetrics:
    """A FeedObserver. Names, types and meaning in one place."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(name: str, words: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_feeder_{name}", words, labels, registry=registry)

        self._fed = gauge("groups_fed", "Groups enqueued by this run.")
        self._planned = gauge("groups_planned", "Groups of all its epochs.")
        self._in_flight = gauge("groups_in_flight", "Groups enqueued that have no verdict yet.")
        self._ahead = gauge("groups_ahead", "Groups enqueued and neither excluded nor done with.")
        self._fates = gauge("groups_settled", "Groups with a verdict: batched, or the reason.", "fate")
        self._outcome = gauge("recent_outcome", "Mean outcome over the last groups with a verdict.")
        self._val_version = gauge("validation_version", "Version of the last round of validation.")
        self._val_outcome = gauge("validation_outcome", "Mean outcome of that round, of what did not fail.")
        self._val_rollouts = gauge("validation_rollouts", "Rollouts of that round.")
        self._val_failed = gauge("validation_failed", "Rollouts of that round without an outcome.")

    def progressed(self, progress: FeedProgress) -> None:
        self._fed.set(progress.num_fed)
        self._planned.set(progress.num_groups)
        self._in_flight.set(progress.num_in_flight)
        self._ahead.set(progress.num_ahead)
        for fate, number in progress.fates.items():
            self._fates.labels(fate).set(number)
        if progress.recent_outcome is not None:
            self._outcome.set(progress.recent_outcome)

    def validated(self, report: ValidationReport) -> None:
        self._val_version.set(report.version)
        self._val_outcome.set(float("nan") if report.outcome_mean is None else report.outcome_mean)
        self._val_rollouts.set(report.num_rollouts)
        self._val_failed.set(report.num_failed)
