"""Algorithms: from sampled rollouts to weighted samples, and the loss that they are trained with.

Each is without state: the same batch is weighed alike, before and after a restart. None has a critic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, assert_never

from headrace.schemas.records import Trajectory
from headrace.trainer.advantage import Baseline, action_weights, baselines
from headrace.trainer.loss import LossFunction, PolicyLoss, SupervisedLoss
from headrace.trainer.sample import Sample, WeightedSample
from headrace.trainer.samples import SampleRules
from headrace.trainer.settings import (
    AlgorithmSettings,
    GrpoSettings,
    LossAggregation,
    PolicyGradientSettings,
    PpoSettings,
    SftSettings,
)

SampledRollout = tuple[Trajectory, Sequence[Sample]]
"""A rollout's verdict, and what `samples_of` made of it."""

Groups = Sequence[Sequence[SampledRollout]]
"""A batch, by group."""


class Algorithm(Protocol):
    """What a training loop asks of one."""

    @property
    def name(self) -> str: ...

    @property
    def needs_old_logprobs(self) -> bool:
        """Micro-batches want the trained model's own logprobs, from before the first step on the batch."""

    @property
    def needs_reference_logprobs(self) -> bool:
        """Micro-batches want those of the reference model."""

    @property
    def num_epochs(self) -> int:
        """How often the batch is trained on, with the same mini-batches and the same old logprobs."""

    @property
    def num_mini_batches(self) -> int:
        """Optimizer steps of an epoch."""

    @property
    def loss(self) -> LossFunction: ...

    def weigh(self, groups: Groups) -> list[WeightedSample]:
        """The samples of the batch that are trained on, in order; weights are normalized over the batch.

        Rollouts that are not accepted, or have no reward of the kind that is asked for, are left out, of
        the others' baseline too (None is not 0, C1). One with a reward and nothing to train on is part of
        the baseline.
        """


@dataclass(frozen=True, slots=True)
class _PolicyGradient:
    settings: PolicyGradientSettings
    rules: SampleRules

    @property
    def needs_old_logprobs(self) -> bool:
        return self.settings.old_logprobs == "policy"

    @property
    def needs_reference_logprobs(self) -> bool:
        return self.settings.kl_coef > 0

    @property
    def num_epochs(self) -> int:
        return self.settings.num_epochs

    @property
    def num_mini_batches(self) -> int:
        return self.settings.num_mini_batches

    @property
    def loss(self) -> LossFunction:
        settings = self.settings
        return PolicyLoss(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            tis_cap=settings.tis_cap or None,
            kl_coef=settings.kl_coef,
            entropy_coef=settings.entropy_coef,
            has_own_old=self.needs_old_logprobs,
        )

    def _weigh(self, groups: Groups) -> list[WeightedSample]:
        """With baselines over each group."""
        judged: list[tuple[SampledRollout, Baseline, list[float]]] = []
        for group in groups:
            rewards = [self._rewards(trajectory) for trajectory, _ in group]
            found = baselines(
                rewards, baseline=self.settings.baseline, normalize_std=self.settings.normalize_std
            )
            judged += [each for each in zip(group, found, rewards, strict=True) if each[2]]
        weights = _weights([rollout for rollout, _, _ in judged], self.settings.loss_aggregation)
        return [
            _weighted(sample, weight, self._advantages(sample, baseline, rewards))
            for ((_, samples), baseline, rewards), weight in zip(judged, weights, strict=True)
            for sample in samples
        ]

    def _rewards(self, trajectory: Trajectory) -> list[float]:
        """One, or one for each credited call; none if there is nothing to go by."""
        if not trajectory.accepted:
            return []
        if self.settings.reward == "outcome":
            return [] if trajectory.outcome is None else [trajectory.outcome]
        rewards = self.rules.call_rewards(trajectory)
        return [math.fsum(rewards)] if self.settings.reward == "sum" and rewards else rewards

    def _advantages(self, sample: Sample, baseline: Baseline, rewards: Sequence[float]) -> list[float]:
        if self.settings.reward == "step":
            return [baseline.advantage(reward) for reward in sample.rewards]
        return [baseline.advantage(rewards[0])] * len(sample)


class Grpo(_PolicyGradient):
    """Group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300).

    Advantages are relative to the rollouts of the same group, whatever their number of calls and samples.
    """

    name = "grpo"

    def weigh(self, groups: Groups) -> list[WeightedSample]:
        return self._weigh(groups)


class PpoClip(_PolicyGradient):
    """The clipped objective of PPO (Schulman et al. 2017, arXiv:1707.06347), without its critic.

    Advantages are relative to all rollouts of the batch: tasks that are easier than others show in them.
    The baseline is the batch's own, not a running one, so that a resumed run is an undisturbed one's equal.
    """

    name = "ppo"

    def weigh(self, groups: Groups) -> list[WeightedSample]:
        return self._weigh([list(chain.from_iterable(groups))])


@dataclass(frozen=True, slots=True)
class Sft:
    """Supervised fine-tuning on the responses of accepted rollouts that did well enough."""

    settings: SftSettings

    name = "sft"
    needs_old_logprobs = False
    needs_reference_logprobs = False

    @property
    def num_epochs(self) -> int:
        return self.settings.num_epochs

    @property
    def num_mini_batches(self) -> int:
        return self.settings.num_mini_batches

    @property
    def loss(self) -> LossFunction:
        return SupervisedLoss()

    def weigh(self, groups: Groups) -> list[WeightedSample]:
        chosen = [rollout for group in groups for rollout in group if self._is_good(rollout[0])]
        weights = _weights(chosen, self.settings.loss_aggregation)
        return [
            _weighted(sample, weight, [1.0] * len(sample))
            for (_, samples), weight in zip(chosen, weights, strict=True)
            for sample in samples
        ]

    def _is_good(self, trajectory: Trajectory) -> bool:
        least = self.settings.min_outcome
        if least is None or not trajectory.accepted:
            return trajectory.accepted
        return trajectory.outcome is not None and trajectory.outcome >= least


def make_algorithm(settings: AlgorithmSettings, rules: SampleRules) -> Algorithm:
    """The algorithm of these settings; `rules` are those that its samples are made by."""
    match settings:
        case GrpoSettings():
            return Grpo(settings, rules)
        case PpoSettings():
            return PpoClip(settings, rules)
        case SftSettings():
            return Sft(settings)
        case _:
            assert_never(settings)


def _weights(rollouts: Sequence[SampledRollout], aggregation: LossAggregation) -> list[float]:
    return action_weights([sum(each.num_actions for each in samples) for _, samples in rollouts], aggregation)


def _weighted(sample: Sample, weight: float, advantages: Sequence[float]) -> WeightedSample:
    """Both are 0 where there is no action."""
    return WeightedSample(
        sample,
        advantages=tuple(
            advantage if is_action else 0.0
            for advantage, is_action in zip(advantages, sample.is_action, strict=True)
        ),
        weights=tuple(weight if is_action else 0.0 for is_action in sample.is_action),
    )
