"""By hand-worked numbers, and against the formula written out token by token."""

import math
from typing import Any

import pytest
import torch

from headrace.schemas.errors import FatalError
from headrace.trainer.loss import LossFunction, PolicyLoss, SupervisedLoss
from headrace.trainer.sample import LossOutput, MicroBatch


def one_token(
    *, advantage: float, weight: float = 1.0, **probabilities: float
) -> tuple[torch.Tensor, MicroBatch]:
    """A sequence of a prompt token and one action, by probabilities of that action."""

    def logprob(name: str) -> torch.Tensor:
        return torch.tensor([[0.0, math.log(probabilities[name])]])

    old = logprob("old")
    batch = MicroBatch(
        token_ids_BS=torch.tensor([[1, 2]]),
        weights_BS=torch.tensor([[0.0, weight]]),
        advantages_BS=torch.tensor([[0.0, advantage]]),
        behaviour_logprobs_BS=logprob("behaviour") if "behaviour" in probabilities else old,
        old_logprobs_BS=old,
        reference_logprobs_BS=logprob("reference") if "reference" in probabilities else None,
    )
    return logprob("new").requires_grad_(), batch


@pytest.mark.parametrize(
    ("options", "token", "loss", "gradient", "metrics"),
    [
        pytest.param(
            {},
            {"new": 0.6, "old": 0.5, "advantage": 2.0, "weight": 0.5},
            -1.2,  # 0.5 · -(1.2 · 2)
            -1.2,  # d r/d log π = r
            {"clip_fraction": 0, "ratio_mean": 1.2, "approx_kl": 0.2 - math.log(1.2), "ratio_max": 1.2},
            id="within the bounds",
        ),
        pytest.param(
            {},
            {"new": 0.75, "old": 0.5, "advantage": 2.0},
            -2.56,
            0,
            {"clip_fraction": 1, "ratio_mean": 1.5},
            id="clipped above, at 1.28",
        ),
        pytest.param(
            {}, {"new": 0.35, "old": 0.5, "advantage": -1.0}, 0.8, 0, {"clip_fraction": 1}, id="clipped below"
        ),
        pytest.param(
            {},
            {"new": 0.35, "old": 0.5, "advantage": 1.0},
            -0.7,
            -0.7,
            {"clip_fraction": 0},
            id="good and rarer: not clipped",
        ),
        pytest.param(
            {},
            {"new": 0.5, "old": 0.1, "advantage": -1.0},
            5.0,
            5.0,
            {"clip_fraction": 0},
            id="bad and more frequent: not clipped",
        ),
        pytest.param(
            {"dual_clip": 3.0},
            {"new": 0.5, "old": 0.1, "advantage": -1.0},
            3.0,
            0,
            {"clip_fraction": 1},
            id="dual clip",
        ),
        pytest.param(
            {"dual_clip": 3.0},
            {"new": 0.12, "old": 0.1, "advantage": -1.0},
            1.2,
            1.2,
            {"clip_fraction": 0},
            id="dual clip, not reached",
        ),
        pytest.param(
            {"has_own_old": True},
            {"new": 0.5, "old": 0.5, "behaviour": 0.4, "advantage": 1.0},
            -1.25,
            -1.25,
            {"tis_mean": 1.25, "tis_truncated_fraction": 0, "logprob_gap_mean": math.log(1.25)},
            id="importance sampling",
        ),
        pytest.param(
            {},
            {"new": 0.5, "old": 0.5, "behaviour": 0.125, "advantage": 1.0},
            -2.0,
            -2.0,
            {"tis_mean": 2, "tis_truncated_fraction": 1, "logprob_gap_max": math.log(4)},
            id="truncated",
        ),
        pytest.param(
            {"tis_cap": None},
            {"new": 0.5, "old": 0.5, "behaviour": 0.125, "advantage": 1.0},
            -1.0,
            -1.0,
            {"tis_mean": 1, "tis_truncated_fraction": 0},
            id="no importance sampling",
        ),
        pytest.param(
            {},
            {"new": 0.6, "old": 0.5, "advantage": 0.0},
            0,
            0,
            {"logprob_gap_mean": math.log(1.2), "logprob_gap_max": math.log(1.2), "tis_mean": 1},
            id="the engine's as old: the gap is the policy's",
        ),
        pytest.param(
            {"kl_coef": 0.5},
            # k3 = 1/2 - log(1/2) - 1, and its slope 1 - 1/2
            {"new": 0.6, "old": 0.6, "reference": 0.3, "advantage": 0.0},
            0.5 * (math.log(2) - 0.5),
            0.25,
            {"reference_kl": math.log(2) - 0.5},
            id="KL",
        ),
        pytest.param(
            {"entropy_coef": 0.1},
            {"new": 0.5, "old": 0.5, "advantage": 1.0, "weight": 2.0},
            -2.0 - 2.0 * 0.1 * 0.75,
            -2.0,
            {"entropy": 0.75},
            id="entropy",
        ),
    ],
)
def test_by_hand(
    options: dict[str, Any],
    token: dict[str, float],
    loss: float,
    gradient: float,
    metrics: dict[str, float],
) -> None:
    logprobs_BS, batch = one_token(**token)
    output = PolicyLoss(**options)(logprobs_BS, torch.full((1, 2), 0.75), batch)
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert output.loss.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs_BS.grad is not None
    assert logprobs_BS.grad.tolist() == [[0, pytest.approx(gradient, abs=1e-6)]]
    found = {name: value.item() for name, value in (output.sums | output.maxima).items()}
    assert found["num_actions"] == 1
    assert {name: found[name] for name in metrics} == pytest.approx(metrics, abs=1e-6)


def random_batch(seed: int, *, B: int = 5, S: int = 7) -> tuple[torch.Tensor, torch.Tensor, MicroBatch]:
    """Logprobs and entropies with gradients, in float64 for comparison; a mask with holes."""
    generator = torch.Generator().manual_seed(seed)

    def logprobs() -> torch.Tensor:
        return -2 * torch.rand(B, S, generator=generator)

    weights_BS = torch.rand(B, S, generator=generator) * (torch.rand(B, S, generator=generator) > 0.4)
    weights_BS[:, 0] = 0
    batch = MicroBatch(
        token_ids_BS=torch.zeros(B, S, dtype=torch.int64),
        weights_BS=weights_BS,
        advantages_BS=torch.randn(B, S, generator=generator),
        behaviour_logprobs_BS=logprobs(),
        old_logprobs_BS=logprobs(),
        reference_logprobs_BS=logprobs(),
    )
    return logprobs().requires_grad_(), torch.rand(B, S, generator=generator).requires_grad_(), batch


def written_out(
    loss: PolicyLoss, new: torch.Tensor, entropy: torch.Tensor, batch: MicroBatch
) -> torch.Tensor:
    """The loss, one token after the other, as the papers write it."""
    assert batch.reference_logprobs_BS is not None
    total = torch.zeros((), dtype=torch.float64)
    for b in range(new.shape[0]):
        for t in range(new.shape[1]):
            w, A = batch.weights_BS[b, t].double(), batch.advantages_BS[b, t].double()
            if w == 0:
                continue
            old, behaviour = batch.old_logprobs_BS[b, t].double(), batch.behaviour_logprobs_BS[b, t].double()
            ratio = torch.exp(new[b, t].double()) / torch.exp(old)
            low, high = 1 - loss.clip_low, 1 + loss.clip_high
            bounded = ratio if low <= ratio <= high else torch.tensor(low if ratio < low else high)
            objective = min(ratio * A, bounded * A)
            if loss.dual_clip is not None and A < 0:
                objective = max(objective, loss.dual_clip * A)
            c = torch.exp(old) / torch.exp(behaviour)
            if loss.tis_cap is None:
                c = torch.ones_like(c)
            elif c > loss.tis_cap:
                c = torch.full_like(c, loss.tis_cap)
            other = torch.exp(batch.reference_logprobs_BS[b, t].double()) / torch.exp(new[b, t].double())
            kl = other - torch.log(other) - 1
            total = total + w * (
                -c * objective + loss.kl_coef * kl - loss.entropy_coef * entropy[b, t].double()
            )
    return total


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(PolicyLoss(), id="default"),
        pytest.param(PolicyLoss(clip_low=0.1, clip_high=0.1, tis_cap=None), id="PPO"),
        pytest.param(PolicyLoss(dual_clip=1.5, tis_cap=1.2, kl_coef=0.3, entropy_coef=0.2), id="all terms"),
    ],
)
def test_against_the_formula(loss: PolicyLoss, seed: int) -> None:
    new_BS, entropy_BS, batch = random_batch(seed)
    output = loss(new_BS, entropy_BS, batch)
    expected = written_out(loss, new_BS, entropy_BS, batch)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    parameters = (new_BS, entropy_BS)
    ours = torch.autograd.grad(output.loss, parameters, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


LOSSES = [
    pytest.param(PolicyLoss(kl_coef=0.1, entropy_coef=0.1), id="policy"),
    pytest.param(SupervisedLoss(), id="supervised"),
]


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_no_action_changes_nothing(loss: LossFunction) -> None:
    new_BS, entropy_BS, batch = random_batch(0)
    is_padding_BS = batch.weights_BS == 0
    spoiled = [
        each.detach().masked_fill(is_padding_BS, torch.nan)
        for each in (new_BS, entropy_BS, *batch[3:])
        if each is not None
    ]
    spoiled_new_BS = spoiled[0].requires_grad_()
    output = loss(spoiled_new_BS, spoiled[1], MicroBatch(*batch[:3], *spoiled[2:]))
    expected = loss(new_BS, entropy_BS, batch)
    assert output.loss.item() == expected.loss.item()
    assert output.sums == expected.sums
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert spoiled_new_BS.grad is not None
    assert not spoiled_new_BS.grad[is_padding_BS].any()
    assert spoiled_new_BS.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_micro_batch_without_actions_keeps_step(loss: LossFunction) -> None:
    new_BS, entropy_BS, batch = random_batch(0)
    output = loss(new_BS, entropy_BS, batch._replace(weights_BS=torch.zeros_like(batch.weights_BS)))
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert new_BS.grad is not None
    assert not new_BS.grad.any()
    full = loss(new_BS, entropy_BS, batch)
    assert _names(output) == _names(full)
    assert not any(value.item() for value in (output.sums | output.maxima).values())


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_over_parts_are_the_whole(loss: LossFunction) -> None:
    new_BS, entropy_BS, batch = random_batch(3)
    whole = loss(new_BS, entropy_BS, batch)
    parts = [
        loss(new_BS[rows], entropy_BS[rows], MicroBatch(*(each[rows] for each in batch if each is not None)))
        for rows in (slice(0, 2), slice(2, 5))
    ]
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item(), rel=1e-4)
    for name, value in whole.sums.items():
        assert sum(part.sums[name].item() for part in parts) == pytest.approx(value.item(), abs=1e-5)
    for name, value in whole.maxima.items():
        assert max(part.maxima[name].item() for part in parts) == value.item()


def test_far_apart_logprobs_stay_finite() -> None:
    new_BS, batch = one_token(new=1.0, old=1e-30, reference=1e-30, behaviour=1e-30, advantage=-1.0)
    output = PolicyLoss(kl_coef=1.0)(new_BS, torch.zeros(1, 2), batch)
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert new_BS.grad is not None
    assert output.loss.isfinite()
    assert new_BS.grad.isfinite().all()


def test_supervised() -> None:
    logprobs_BS = torch.tensor([[0.0, -1.0, -2.0], [0.0, -4.0, -8.0]], requires_grad=True)
    _, _, batch = random_batch(0, B=2, S=3)
    batch = batch._replace(
        weights_BS=torch.tensor([[0, 0.5, 0.25], [0, 0, 0.125]]), behaviour_logprobs_BS=torch.zeros(2, 3)
    )
    output = SupervisedLoss()(logprobs_BS, torch.ones(2, 3), batch)
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert output.loss.item() == 0.5 * 1 + 0.25 * 2 + 0.125 * 8
    assert logprobs_BS.grad is not None
    assert logprobs_BS.grad.tolist() == [[0, -0.5, -0.25], [0, 0, -0.125]]
    assert {name: value.item() for name, value in output.sums.items()} == {
        "num_actions": 3,
        "negative_logprob": 11,
        "entropy": 3,
        "logprob_gap_mean": 11,
    }
    assert output.maxima["logprob_gap_max"].item() == 8


def test_a_kl_term_without_a_reference_is_refused() -> None:
    new_BS, batch = one_token(new=0.5, old=0.5, advantage=1.0)
    with pytest.raises(FatalError, match="reference"):
        PolicyLoss(kl_coef=0.1)(new_BS, torch.zeros(1, 2), batch)


def _names(output: LossOutput) -> tuple[set[str], set[str]]:
    return set(output.sums), set(output.maxima)
