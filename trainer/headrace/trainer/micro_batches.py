"""Micro-batches: a batch's samples in tensors of a bounded size, evenly over the data-parallel ranks.

Everything is decided from the samples alone, in their order: each rank computes the same plan and takes its
part, and the same batch always gives the same micro-batches.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from headrace.trainer.sample import MicroBatch, WeightedSample

_PAD_TOKEN_ID = 0


def mini_batches(
    samples: Sequence[WeightedSample], num_mini_batches: int, *, seed: int = 0
) -> list[list[WeightedSample]]:
    """Split a batch for several optimizer steps, a rollout's samples together, rollouts drawn by `seed`.

    Weights are multiplied by the number of parts: the mean over the parts of their losses is the batch's.
    Fewer parts than asked for if there are fewer rollouts; none is empty.
    """
    rollouts: dict[str, list[WeightedSample]] = {}
    for each in samples:
        rollouts.setdefault(each.sample.rollout_id, []).append(each)
    parts = min(num_mini_batches, len(rollouts))
    if parts <= 1:
        return [list(samples)] if samples else []
    order = list(rollouts.values())
    random.Random(seed).shuffle(order)  # noqa: S311  reproducible, not secret
    return [
        [
            replace(each, weights=tuple(weight * parts for weight in each.weights))
            for rollout in order[part::parts]
            for each in rollout
        ]
        for part in range(parts)
    ]


def micro_batches(
    samples: Sequence[WeightedSample],
    *,
    max_tokens: int,
    dp_rank: int = 0,
    dp_size: int = 1,
) -> list[MicroBatch]:
    """This rank's part of the batch, as many micro-batches as any other rank's; longest first.

    On the CPU. B·S ≤ max_tokens, padding included; a sample larger than that is alone. Where there are too
    few samples for every rank, an empty micro-batch (one position, all weights 0) keeps step. Samples whose
    weights are all 0 are left out.
    `old_logprobs_BS` are the behaviour's.
    """
    plan = _plan(samples, max_tokens, dp_size)
    mine = [group for turn, group in enumerate(plan) if _rank(turn, dp_size) == dp_rank]
    return [_stack([samples[index] for index in group]) for group in mine]


def with_old_logprobs(batches: Iterable[MicroBatch], logprobs: Iterable[torch.Tensor]) -> list[MicroBatch]:
    """With the trained model's own logprobs before its first step on the batch."""
    return [
        batch._replace(old_logprobs_BS=each.detach()) for batch, each in zip(batches, logprobs, strict=True)
    ]


def with_reference_logprobs(
    batches: Iterable[MicroBatch], logprobs: Iterable[torch.Tensor]
) -> list[MicroBatch]:
    """With those of the KL term's reference model."""
    return [
        batch._replace(reference_logprobs_BS=each.detach())
        for batch, each in zip(batches, logprobs, strict=True)
    ]


def _plan(samples: Sequence[WeightedSample], max_tokens: int, dp_size: int) -> list[list[int]]:
    """Indices of each micro-batch of all ranks, largest first; the count is a multiple of dp_size."""
    sizes = [len(each.sample) for each in samples]
    by_size = sorted((i for i, each in enumerate(samples) if any(each.weights)), key=lambda i: -sizes[i])
    groups: list[list[int]] = []
    for index in by_size:
        # The first of a group is its longest.
        if groups and (len(groups[-1]) + 1) * sizes[groups[-1][0]] <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])

    def cost(group: list[int]) -> int:
        return len(group) * sizes[group[0]] if group else 0

    while len(groups) % dp_size or not groups:
        # Half of a large one keeps a rank busy where an empty one would leave it idle.
        largest = max((each for each in groups if len(each) > 1), key=cost, default=None)
        if largest is None:
            groups.append([])
            continue
        groups.remove(largest)
        half = (len(largest) + 1) // 2
        groups += [largest[:half], largest[half:]]
    return sorted(groups, key=lambda group: (-cost(group), group))


def _rank(turn: int, dp_size: int) -> int:
    """0 1 2, 2 1 0, 0 1 2 …: of groups that shrink, each rank gets about as much."""
    lap, place = divmod(turn, dp_size)
    return place if lap % 2 == 0 else dp_size - 1 - place


def _stack(samples: Sequence[WeightedSample]) -> MicroBatch:
    width = max((len(each.sample) for each in samples), default=1)

    def floats(rows: Sequence[Sequence[float]]) -> torch.Tensor:
        padded = [[*row, *[0.0] * (width - len(row))] for row in rows] or [[0.0] * width]
        return torch.tensor(padded, dtype=torch.float32)

    token_ids = [
        [*each.sample.token_ids, *[_PAD_TOKEN_ID] * (width - len(each.sample))] for each in samples
    ] or [[_PAD_TOKEN_ID] * width]
    behaviour_BS = floats([each.sample.behaviour_logprobs for each in samples])
    return MicroBatch(
        token_ids_BS=torch.tensor(token_ids, dtype=torch.int64),
        weights_BS=floats([each.weights for each in samples]),
        advantages_BS=floats([each.advantages for each in samples]),
        behaviour_logprobs_BS=behaviour_BS,
        old_logprobs_BS=behaviour_BS,
    )
