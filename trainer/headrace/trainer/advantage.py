"""Advantages and weights: what a rollout's reward says of its actions, and how much each action counts.

Plain arithmetic on Python floats, exactly rounded sums: the same batch gives the same numbers anywhere.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from headrace.trainer.settings import LossAggregation

EPSILON = 1e-6
"""Added to a standard deviation, so that rewards which differ by rounding alone are not blown up."""


class Baseline(NamedTuple):
    """What a rollout's rewards are measured from, and in what unit."""

    center: float
    scale: float
    """0 where nothing can be compared."""

    def advantage(self, reward: float) -> float:
        return (reward - self.center) * self.scale


NO_CONTRAST = Baseline(0.0, 0.0)


def baselines(
    rewards: Sequence[Sequence[float]],
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    normalize_std: bool = True,
) -> list[Baseline]:
    """One for each rollout that is compared with the others. A rollout has one reward, or one for each call.

    With n rollouts that have rewards, K_i calls in rollout i, m_i = (1/K_i) Σ_k r_ik:

    - mean: center = (1/n) Σ_i m_i (GRPO: Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, 4.1.2);
    - leave_one_out: center_i = (1/(n-1)) Σ_{j≠i} m_j (RLOO: Ahmadian et al. 2024, arXiv:2402.14740);
    - scale = 1/(s + 1e-6) with s² = (1/(n-1)) Σ_i (1/K_i) Σ_k (r_ik - μ)², μ the mean of the m_i, or 1
      without normalize_std (Dr. GRPO: Liu et al. 2025, arXiv:2503.20783).

    A rollout's number of calls does not change what it counts among the others. With one reward each it is
    the familiar (r_i - mean)/std, with the unbiased std. Rollouts without rewards, those that are alone, and
    those whose rewards are all the same get NO_CONTRAST: advantages of zero.
    """
    present = [each for each in rewards if each]
    n = len(present)
    if n < 2 or len({reward for each in present for reward in each}) == 1:
        return [NO_CONTRAST] * len(rewards)
    means = [_mean(each) for each in rewards]
    total = math.fsum(mean for mean in means if mean is not None)
    center = total / n
    scale = 1.0
    if normalize_std:
        spread = math.fsum(math.fsum((r - center) ** 2 for r in each) / len(each) for each in present)
        scale = 1.0 / (math.sqrt(spread / (n - 1)) + EPSILON)
    if baseline == "leave_one_out":
        return [NO_CONTRAST if mean is None else Baseline((total - mean) / (n - 1), scale) for mean in means]
    return [NO_CONTRAST if mean is None else Baseline(center, scale) for mean in means]


def action_weights(num_actions: Sequence[int], aggregation: LossAggregation) -> list[float]:
    """What each action of a rollout counts in the batch's loss, which is a sum over all its actions.

    With N rollouts that have actions, T_i of them in rollout i, over all its sequences:

    - rollout_mean: 1/(N·T_i), each rollout counts the same, however long (GRPO, arXiv:2402.03300);
    - token_mean: 1/ΣT_j, each token counts the same (DAPO: Yu et al. 2025, arXiv:2503.14476);
    - sequence_sum: 1/N, long rollouts count more (Dr. GRPO, arXiv:2503.20783, but for a constant factor).

    0 for a rollout without actions.
    """
    num_rollouts = sum(count > 0 for count in num_actions)
    total = sum(num_actions)

    def weight(count: int) -> float:
        if count == 0:
            return 0.0
        if aggregation == "rollout_mean":
            return 1.0 / (num_rollouts * count)
        return 1.0 / (total if aggregation == "token_mean" else num_rollouts)

    return [weight(count) for count in num_actions]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
