"""What a runner counts: a hook that does nothing, and the same on Prometheus in `prometheus.py`."""

from headrace.schemas.records.rollout import AttemptOutcome


class RunnerMetrics:
    """Called from the runner's loop only."""

    def started(self) -> None:
        """The log has an attempt's start."""

    def ended(self, status: AttemptOutcome, seconds: float) -> None:
        """An attempt's end is published, so long after its start."""

    def running(self, number: int) -> None:
        """Attempts at work now."""

    def abandoned(self, number: int) -> None:
        """Agents that were told to end and have not."""

    def skipped(self, why: str) -> None:
        """A task was not run: its attempt is `started` already, here or elsewhere, or `ended` before that."""
