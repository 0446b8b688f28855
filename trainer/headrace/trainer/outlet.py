"""What leaves the trainer: versions of weights and TrainStep records, from the main process alone."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from headrace.schemas.records import TrainStep, now
from headrace.streams.client.publisher import Publisher
from headrace.trainer.checkpoint import TrainState
from headrace.trainer.progress import Report
from headrace.trainer.publish import WeightsPublisher


class Published(Protocol):
    """policy.Policy, as it is published; collective."""

    def hf_state_dict(self) -> Mapping[str, torch.Tensor] | None: ...


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
        *,
        run_id: str,
        algorithm: str,
    ) -> None:
        self._ranks = ranks
        self._publisher = publisher
        self._weights = weights
        self._run_id = run_id
        self._algorithm = algorithm

    def publish_weights(self, policy: Published, state: TrainState) -> int:
        """The version, on every process. Collective."""
        tensors = policy.hf_state_dict()
        version: object = None
        if self._weights is not None:
            assert tensors is not None  # noqa: S101  the main process has them
            version = self._weights.publish(
                tensors,
                state.step,
                trained_on=state.unpublished,
                offsets=state.offsets,
                parent_version=state.policy_version,
                metadata={"algorithm": self._algorithm, "num_batches": str(state.num_batches)},
            ).version
        known = self._ranks.broadcast(version)
        assert isinstance(known, int)  # noqa: S101  what the main process sent
        return known

    def publish_step(self, report: Report, batch_ids: Sequence[str]) -> None:
        """Acknowledged before it returns: what it cost is little beside a step."""
        if self._publisher is None:
            return
        self._publisher.publish(
            TrainStep(
                run_id=self._run_id,
                step=report.step,
                algorithm=self._algorithm,
                policy_version=report.policy_version or 0,
                batch_ids=tuple(batch_ids),
                num_trajectories=report.num_rollouts,
                num_tokens=report.num_tokens,
                metrics=dict(report.metrics),
                durations_s=dict(report.durations_s),
                time=now(),
            )
        )
        self._publisher.flush()
