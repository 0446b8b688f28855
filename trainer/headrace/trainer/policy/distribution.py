"""What is said of a model's next-token distribution: a token's logprob, and the entropy.

Over a vocabulary that is spread over tensor-parallel ranks, in float32, with gradients through both.
Shape legend: N positions, V this rank's part of the vocabulary.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable


def token_statistics(
    logits_NV: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    first: int,
    temperature: float,
    group: dist.ProcessGroup,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the targets and entropies, float32 (N), of softmax(logits / temperature).

    `first` is the token id of this rank's first column. The same on every rank of the group.
    """
    apply: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _TokenStatistics.apply
    return apply(logits_NV, targets_N, first, temperature, group)


class _TokenStatistics(torch.autograd.Function):
    """Keeps the logits as they came, and not a float32 distribution beside them."""

    @staticmethod
    def forward(  # noqa: PLR0917  as autograd calls it
        ctx: Any,  # noqa: ANN401  torch's
        logits_NV: torch.Tensor,
        targets_N: torch.Tensor,
        first: int,
        temperature: float,
        group: dist.ProcessGroup,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        max_N = logits_NV.amax(dim=-1).float()
        if group.size() > 1:
            dist.all_reduce(max_N, op=dist.ReduceOp.MAX, group=group)
        scaled_NV = _scaled(logits_NV, max_N, temperature)
        column_N, is_here_N = _columns(targets_N, first, logits_NV.shape[1])
        target_N = scaled_NV.gather(1, column_N[:, None])[:, 0].where(is_here_N, 0.0)
        exp_NV = scaled_NV.exp()
        sums_3N = torch.stack([target_N, exp_NV.sum(-1), exp_NV.mul_(scaled_NV).sum(-1)])
        if group.size() > 1:
            dist.all_reduce(sums_3N, group=group)
        target_N, sum_N, weighted_N = sums_3N
        entropy_N = sum_N.log() - weighted_N / sum_N
        normalizer_N = max_N + sum_N.log() * temperature
        ctx.save_for_backward(logits_NV, targets_N, normalizer_N, entropy_N)
        ctx.first, ctx.temperature = first, temperature
        return target_N - sum_N.log(), entropy_N

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  torch's
        logprobs_grad_N: torch.Tensor,
        entropy_grad_N: torch.Tensor,
    ) -> tuple[torch.Tensor, None, None, None, None]:
        """By logit times temperature: [is target] - p for logprobs, -p (log p + entropy) for entropies."""
        logits_NV, targets_N, normalizer_N, entropy_N = ctx.saved_tensors
        logp_NV = _scaled(logits_NV, normalizer_N, ctx.temperature)
        grad_NV = logp_NV.exp()
        logp_NV += entropy_N[:, None]
        logp_NV *= -entropy_grad_N[:, None]
        grad_NV *= logp_NV.sub_(logprobs_grad_N[:, None])
        column_N, is_here_N = _columns(targets_N, ctx.first, logits_NV.shape[1])
        grad_NV.scatter_add_(1, column_N[:, None], logprobs_grad_N.where(is_here_N, 0.0)[:, None])
        if ctx.temperature != 1.0:
            grad_NV /= ctx.temperature
        return grad_NV.to(logits_NV.dtype), None, None, None, None


def _scaled(logits_NV: torch.Tensor, zero_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """(logits - zero) / temperature in float32, in memory of its own."""
    scaled_NV = logits_NV - zero_N[:, None]
    return scaled_NV if temperature == 1.0 else scaled_NV.div_(temperature)


def _columns(targets_N: torch.Tensor, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the targets are in this rank's columns, and whether they are there at all."""
    column_N = targets_N - first
    is_here_N = (column_N >= 0) & (column_N < size)
    return column_N.where(is_here_N, 0), is_here_N
