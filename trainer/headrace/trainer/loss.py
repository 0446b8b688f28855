"""Losses of a micro-batch: what a policy's logprobs and entropies are worth, and metrics beside it.

Only tokens with a weight count; whatever stands at the others, NaN too, changes nothing. All in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace.schemas.errors import FatalError
from headrace.trainer.sample import LossOutput, MicroBatch

LossFunction = Callable[[torch.Tensor, torch.Tensor, MicroBatch], LossOutput]
"""(logprobs_BS, entropy_BS, micro-batch) → what to minimize, and metrics.

Every micro-batch gives the same names, also an empty one, so that ranks can reduce them together.
`sums` divided by `num_actions` are means over tokens, each counted once; `approx_kl` is of KL(old‖π).
"""

MAX_LOG_RATIO = 20.0
"""exp of more says nothing further, and would overflow. Past it there is no gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The clipped surrogate, with truncated importance sampling, KL and entropy terms.

    For a token with advantage A, weight w, logprobs under the policy π, before the first step on this batch
    old, as sampled μ, and of a reference ref, the loss is w times

        -c · min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A) + kl_coef·k3 - entropy_coef·H

    - r = π/old (PPO: Schulman et al. 2017, arXiv:1707.06347, eq. 7); asymmetric bounds as in DAPO
      (Yu et al. 2025, arXiv:2503.14476, 3.1);
    - dual_clip d: where A < 0, at least d·A (Ye et al. 2020, arXiv:1912.09729, eq. 5);
    - c = min(old/μ, tis_cap), a constant (truncated importance sampling: Ionides 2008; between engine and
      trainer: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training");
    - k3 = ref/π - log(ref/π) - 1, an unbiased estimate of KL(π‖ref) that is never negative (Schulman 2020,
      "Approximating KL divergence"; GRPO: arXiv:2402.03300, eq. 4);
    - H, the entropy of the distribution that the token was drawn from.

    Where `old` is the behaviour's, c is 1, and r corrects for all that lies between sampling and now.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    tis_cap: float | None = 2.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    has_own_old: bool = False
    """The micro-batches' old logprobs are the trained model's, so that they show the gap to the engine's.
    Else the gap is that of the logprobs themselves, which in the first step on a batch says the same."""

    def __call__(self, logprobs_BS: torch.Tensor, entropy_BS: torch.Tensor, batch: MicroBatch) -> LossOutput:
        is_action_BS = batch.weights_BS != 0
        weights, advantages = batch.weights_BS[is_action_BS], batch.advantages_BS[is_action_BS]
        new, entropy = logprobs_BS[is_action_BS].float(), entropy_BS[is_action_BS].float()
        old, behaviour = batch.old_logprobs_BS[is_action_BS], batch.behaviour_logprobs_BS[is_action_BS]
        ratio = _ratio(new - old)
        surrogate, is_clipped = self._surrogate(ratio, advantages)
        correction = _ratio(old - behaviour)
        tis = torch.ones_like(correction) if self.tis_cap is None else correction.clamp(max=self.tis_cap)
        loss = (weights * (-tis * surrogate - self.entropy_coef * entropy)).sum()
        gap = ((old if self.has_own_old else new.detach()) - behaviour).abs()
        sums = {
            "num_actions": is_action_BS.sum(),
            "clip_fraction": is_clipped.sum(),
            "approx_kl": _k3(new - old).sum(),
            "entropy": entropy.sum(),
            "ratio_mean": ratio.sum(),
            "tis_mean": tis.sum(),
            "tis_truncated_fraction": (correction > (self.tis_cap or torch.inf)).sum(),
            "logprob_gap_mean": gap.sum(),
        }
        if self.kl_coef > 0:
            if batch.reference_logprobs_BS is None:
                raise FatalError("kl_coef is above 0 and the micro-batch has no reference logprobs")
            reference_kl = _k3(batch.reference_logprobs_BS[is_action_BS] - new)
            loss = loss + self.kl_coef * (weights * reference_kl).sum()
            sums["reference_kl"] = reference_kl.sum()
        return LossOutput(
            loss=loss,
            sums={name: value.detach().float() for name, value in sums.items()},
            maxima={"ratio_max": _largest(ratio), "logprob_gap_max": _largest(gap)},
        )

    def _surrogate(self, ratio: torch.Tensor, advantages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """To be maximized, and where a bound holds it."""
        plain = ratio * advantages
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        surrogate = torch.minimum(plain, clipped)
        if self.dual_clip is not None:
            floor = torch.where(advantages < 0, self.dual_clip * advantages, -torch.inf)
            surrogate = torch.maximum(surrogate, floor)
        return surrogate, surrogate != plain


@dataclass(frozen=True, slots=True)
class SupervisedLoss:
    """Negative log-likelihood of the actions: w times -log π. Advantages are not looked at."""

    def __call__(self, logprobs_BS: torch.Tensor, entropy_BS: torch.Tensor, batch: MicroBatch) -> LossOutput:
        is_action_BS = batch.weights_BS != 0
        new = logprobs_BS[is_action_BS].float()
        gap = (new.detach() - batch.behaviour_logprobs_BS[is_action_BS]).abs()
        sums = {
            "num_actions": is_action_BS.sum(),
            "negative_logprob": -new.sum(),
            "entropy": entropy_BS[is_action_BS].sum(),
            "logprob_gap_mean": gap.sum(),
        }
        return LossOutput(
            loss=-(batch.weights_BS[is_action_BS] * new).sum(),
            sums={name: value.detach().float() for name, value in sums.items()},
            maxima={"logprob_gap_max": _largest(gap)},
        )


def _ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def _k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """e^x - x - 1: of x = log(q/p) under p, an estimate of KL(p‖q)."""
    bounded = log_ratio.clamp(max=MAX_LOG_RATIO)
    return torch.expm1(bounded) - bounded


def _largest(values: torch.Tensor) -> torch.Tensor:
    """0 of none: ratios and gaps are not negative."""
    return values.detach().max() if values.numel() else values.new_zeros(())
