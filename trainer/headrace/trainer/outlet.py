"""What leaves the trainer: versions of weights and TrainStep records, from the main process alone.

While Kafka does not take them, the run waits: what is trained on meanwhile would have no place in the log.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from headrace.schemas.errors import RetryableError
from headrace.schemas.records import TrainStep, now
from headrace.streams.client.publisher import Publisher
from headrace.trainer.checkpoint import TrainState
from headrace.trainer.policy import Policy
from headrace.trainer.probing import probe_of
from headrace.trainer.progress import Report
from headrace.trainer.publish import WeightsPublisher

_AGAIN = "again"
"""Sent now and then while Kafka is away: process groups give up on a peer that is silent for long."""
_RETRY_S = 5.0

log = structlog.get_logger(__name__)


class Broadcast(Protocol):
    """ranks.Ranks; collective."""

    def broadcast(self, value: object) -> object: ...


class KafkaOutlet:
    """On every process; `publisher` and `weights` are the main one's."""

    def __init__(
        self,
        ranks: Broadcast,
        publisher: Publisher | None,
        weights: WeightsPublisher | None,
        stop: threading.Event,
        *,
        run_id: str,
        algorithm: str,
        retry_s: float = _RETRY_S,
    ) -> None:
        """Once `stop` is set, what Kafka does not take is an error."""
        self._ranks = ranks
        self._publisher = publisher
        self._weights = weights
        self._run_id = run_id
        self._algorithm = algorithm
        self._stop = stop
        self._retry_s = retry_s

    def publish_weights(self, policy: Policy, state: TrainState) -> int:
        """The version, on every process. Collective."""
        tensors = policy.hf_state_dict()
        probe = probe_of(policy)
        metadata = {"algorithm": self._algorithm, "num_batches": str(state.num_batches)}

        def publish() -> int:
            assert self._weights is not None  # noqa: S101  the main process has both
            assert tensors is not None  # noqa: S101
            return self._weights.publish(
                tensors,
                state.step,
                trained_on=state.unpublished,
                offsets=state.offsets,
                parent_version=state.policy_version,
                metadata=metadata | (probe.metadata() if probe else {}),
            ).version

        version = self._together("weights", publish)
        assert isinstance(version, int)  # noqa: S101  what the main process sent
        return version

    def publish_step(self, report: Report, batch_ids: Sequence[str]) -> None:
        """Acknowledged before it returns: what it cost is little beside a step. Collective."""
        record = TrainStep(
            run_id=self._run_id,
            step=report.step,
            algorithm=self._algorithm,
            policy_version=report.policy_version or 0,
            batch_ids=tuple(batch_ids),
            num_batches=report.num_batches,
            num_steps=report.num_steps,
            num_trajectories=report.num_rollouts,
            num_tokens=report.num_tokens,
            metrics=dict(report.metrics),
            durations_s=dict(report.durations_s),
            time=now(),
        )

        def publish() -> None:
            assert self._publisher is not None  # noqa: S101  the main process has one
            self._publisher.publish(record)
            self._publisher.flush()

        self._together("a step", publish)

    def _together(self, what: str, work: Callable[[], object]) -> object:
        """Do it on the main process until Kafka has taken it; what it gives, on every process."""
        while True:
            found = self._ranks.broadcast(self._tried(what, work) if self._publisher is not None else None)
            if found != _AGAIN:
                return found

    def _tried(self, what: str, work: Callable[[], object]) -> object:
        try:
            return work()
        except RetryableError as error:
            if self._stop.is_set():
                raise
            log.warning("Kafka does not take it, trying again", what=what, reason=str(error))
            self._stop.wait(self._retry_s)
            return _AGAIN
