from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.rollouts import a_weighted_sample

from headrace.trainer.loss import SupervisedLoss
from headrace.trainer.micro_batches import (
    micro_batches,
    mini_batches,
    with_old_logprobs,
    with_reference_logprobs,
)
from headrace.trainer.sample import MicroBatch, WeightedSample


def of_lengths(lengths: Sequence[int]) -> list[WeightedSample]:
    """Samples of these lengths, each with a weight and a rollout of its own."""
    return [
        a_weighted_sample(1, length - 1, weight=index + 1.0, rollout=f"r{index}")
        for index, length in enumerate(lengths)
    ]


def loss_of(batches: Sequence[MicroBatch]) -> float:
    total = 0.0
    for batch in batches:
        logprobs_BS = -torch.cumsum(batch.token_ids_BS.float(), 1)
        total += SupervisedLoss()(logprobs_BS, torch.zeros_like(logprobs_BS), batch).loss.item()
    return total


def test_tensors() -> None:
    samples = [
        a_weighted_sample(1, 1, weight=0.5, advantage=2.0),
        a_weighted_sample(2, 1, weight=0.25, advantage=-1.0),
    ]
    [batch] = micro_batches(samples, max_tokens=6)
    assert batch.token_ids_BS.tolist() == [[1, 2, 3], [1, 2, 0]]
    assert batch.weights_BS.tolist() == [[0, 0, 0.25], [0, 0.5, 0]]
    assert batch.advantages_BS.tolist() == [[0, 0, -1], [0, 2, 0]]
    assert batch.behaviour_logprobs_BS.tolist() == [[0, 0, -0.5], [0, -0.5, 0]]
    assert batch.old_logprobs_BS is batch.behaviour_logprobs_BS
    assert batch.reference_logprobs_BS is None
    assert batch.token_ids_BS.dtype == torch.int64
    assert batch.weights_BS.dtype == batch.advantages_BS.dtype == torch.float32


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "dp_size", "expected"),
    [
        pytest.param([2, 5, 3], 10, 1, [[(2, 5), (1, 2)]], id="longest first"),
        pytest.param([9, 2, 2], 4, 1, [[(1, 9), (2, 2)]], id="larger than the budget, alone"),
        pytest.param([4, 4, 4, 4], 16, 2, [[(2, 4)], [(2, 4)]], id="halved, so that no rank idles"),
        pytest.param([4, 4, 4], 16, 2, [[(2, 4)], [(1, 4)]], id="halved unevenly"),
        pytest.param([8, 6, 4, 2], 8, 2, [[(1, 8), (1, 2)], [(1, 6), (1, 4)]], id="long with short"),
        pytest.param([3], 8, 3, [[(1, 3)], [(1, 1)], [(1, 1)]], id="empty ones keep step"),
        pytest.param([], 8, 2, [[(1, 1)], [(1, 1)]], id="nothing"),
    ],
)
def test_plans(
    lengths: list[int], max_tokens: int, dp_size: int, expected: list[list[tuple[int, int]]]
) -> None:
    found = [
        [
            tuple(batch.token_ids_BS.shape)
            for batch in micro_batches(
                of_lengths(lengths), max_tokens=max_tokens, dp_rank=rank, dp_size=dp_size
            )
        ]
        for rank in range(dp_size)
    ]
    assert found == expected


@given(
    lengths=st.lists(st.integers(2, 12), max_size=14),
    max_tokens=st.integers(2, 40),
    dp_size=st.integers(1, 4),
)
def test_each_sample_once_evenly_within_the_budget(lengths: list[int], max_tokens: int, dp_size: int) -> None:
    samples = of_lengths(lengths)
    ranks = [
        micro_batches(samples, max_tokens=max_tokens, dp_rank=rank, dp_size=dp_size)
        for rank in range(dp_size)
    ]
    assert len({len(each) for each in ranks}) == 1
    batches = [batch for rank in ranks for batch in rank]
    trained = [row.max().item() for batch in batches for row in batch.weights_BS if row.any()]
    assert sorted(trained) == [index + 1.0 for index in range(len(samples))]
    for batch in batches:
        rows, width = batch.token_ids_BS.shape
        longest = int(batch.weights_BS.bool().any(0).nonzero().max()) + 1 if batch.weights_BS.any() else 1
        assert width == longest
        assert rows * width <= max_tokens or rows == 1
    sizes = [[batch.token_ids_BS.numel() * bool(batch.weights_BS.any()) for batch in rank] for rank in ranks]
    totals = [sum(each) for each in sizes]
    assert max(totals) - min(totals) <= max(size for each in sizes for size in each)
    whole = loss_of(micro_batches(samples, max_tokens=10_000))
    assert sum(loss_of(rank) for rank in ranks) == pytest.approx(whole)


def test_the_same_batch_gives_the_same_micro_batches() -> None:
    samples = of_lengths([3, 3, 5, 2, 5, 3])
    first, second = (micro_batches(samples, max_tokens=10, dp_rank=1, dp_size=2) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None
        )


def test_samples_without_a_weight_cost_nothing() -> None:
    samples = [a_weighted_sample(1, 9, weight=0.0), a_weighted_sample(1, 2)]
    [batch] = micro_batches(samples, max_tokens=100)
    assert batch.token_ids_BS.shape == (1, 3)


def test_logprobs_of_the_policy_and_the_reference_take_their_places() -> None:
    batches = micro_batches(of_lengths([3, 2]), max_tokens=3)
    logprobs = [torch.full(batch.token_ids_BS.shape, -2.0, requires_grad=True) for batch in batches]
    [first, second] = with_reference_logprobs(with_old_logprobs(batches, logprobs), logprobs)
    assert first.old_logprobs_BS.tolist() == [[-2, -2, -2]]
    assert second.reference_logprobs_BS is not None
    assert not first.old_logprobs_BS.requires_grad
    assert not second.reference_logprobs_BS.requires_grad
    assert first.behaviour_logprobs_BS.tolist() == [[0, -0.5, -0.5]]
    with pytest.raises(ValueError, match="shorter"):
        with_old_logprobs(batches, logprobs[:1])


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 5), st.integers(0, 3))
def test_mini_batches_keep_rollouts_whole_and_their_mean_is_the_batch(
    rollouts: list[int], num_parts: int, seed: int
) -> None:
    samples = [a_weighted_sample(1, 1 + index % 3, rollout=f"r{each}") for index, each in enumerate(rollouts)]
    parts = mini_batches(samples, num_parts, seed=seed)
    assert len(parts) == min(num_parts, len(set(rollouts)))
    homes = [{each.sample.rollout_id for each in part} for part in parts]
    assert sum(map(len, homes)) == len(set(rollouts))
    assert sum(map(len, parts)) == len(samples)
    assert parts == mini_batches(samples, num_parts, seed=seed)
    if parts:
        losses = [loss_of(micro_batches(part, max_tokens=100)) for part in parts]
        assert sum(losses) / len(losses) == pytest.approx(loss_of(micro_batches(samples, max_tokens=100)))


def test_the_seed_decides_who_is_together() -> None:
    samples = of_lengths([2] * 8)
    assert mini_batches(samples, 2, seed=1) != mini_batches(samples, 2, seed=2)
    assert mini_batches(samples, 1, seed=1) == [samples]
