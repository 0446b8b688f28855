from typing import Any

import pytest
import torch
from tests.trainer.rollouts import a_call, a_trajectory

from headrace.schemas.records import Trajectory
from headrace.trainer.algorithms import Algorithm, SampledRollout, make_algorithm
from headrace.trainer.loss import PolicyLoss, SupervisedLoss
from headrace.trainer.micro_batches import micro_batches
from headrace.trainer.sample import WeightedSample
from headrace.trainer.samples import SampleRules, samples_of
from headrace.trainer.settings import GrpoSettings, PpoSettings, SftSettings

PLAIN: dict[str, Any] = {"normalize_std": False}


def an_algorithm(settings: GrpoSettings | PpoSettings | SftSettings, **rules: Any) -> Algorithm:
    return make_algorithm(settings, SampleRules(needs_call_rewards=settings.needs_call_rewards, **rules))


def sampled(trajectory: Trajectory, **rules: Any) -> SampledRollout:
    return trajectory, samples_of(trajectory, SampleRules(**rules))


def a_rollout(name: str, outcome: float | None = 1.0, *, num_calls: int = 1, **fields: Any) -> SampledRollout:
    """Calls that share nothing, with two tokens each: as many samples."""
    calls = [a_call([10 + index], [2, 3], reward=outcome) for index in range(num_calls)]
    return sampled(a_trajectory(*calls, name=name, outcome=outcome, **fields))


def actions(weighted: list[WeightedSample]) -> list[tuple[float, float]]:
    """Advantage and weight of each sample, which all its actions share."""
    found = []
    for each in weighted:
        pairs = {
            (advantage, weight)
            for advantage, weight, is_action in zip(
                each.advantages, each.weights, each.sample.is_action, strict=True
            )
            if is_action
        }
        [pair] = pairs
        found.append(pair)
        assert all(
            advantage == weight == 0
            for advantage, weight, is_action in zip(
                each.advantages, each.weights, each.sample.is_action, strict=True
            )
            if not is_action
        )
    return found


def test_grpo_compares_rollouts_of_a_group_not_samples() -> None:
    groups = [
        [a_rollout("a", 1.0, num_calls=3), a_rollout("b", 0.0)],
        [a_rollout("c", 5.0), a_rollout("d", 3.0)],
    ]
    weighted = an_algorithm(GrpoSettings(**PLAIN)).weigh(groups)
    # Four rollouts: 1/4 for each, over 6 actions of the first and 2 of the others.
    assert actions(weighted) == [*[(0.5, 1 / 24)] * 3, (-0.5, 1 / 8), (1.0, 1 / 8), (-1.0, 1 / 8)]
    assert sum(sum(each.weights) for each in weighted) == pytest.approx(1)


def test_ppo_compares_all_rollouts_of_the_batch() -> None:
    groups = [
        [a_rollout("a", 1.0), a_rollout("b", 1.0)],
        [a_rollout("c", 0.0), a_rollout("d", 0.0)],
    ]
    weighted = an_algorithm(PpoSettings(**PLAIN)).weigh(groups)
    assert actions(weighted) == [(0.5, 1 / 8), (0.5, 1 / 8), (-0.5, 1 / 8), (-0.5, 1 / 8)]
    assert [advantage for advantage, _ in actions(an_algorithm(GrpoSettings()).weigh(groups))] == [0] * 4


@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("rollout_mean", [1 / 8, 1 / 8, 1 / 4]),
        ("token_mean", [1 / 6, 1 / 6, 1 / 6]),
        ("sequence_sum", [1 / 2, 1 / 2, 1 / 2]),
    ],
)
def test_loss_aggregation(aggregation: Any, weights: list[float]) -> None:
    groups = [[a_rollout("a", num_calls=2), a_rollout("b")]]
    for settings in (GrpoSettings(loss_aggregation=aggregation), SftSettings(loss_aggregation=aggregation)):
        assert [weight for _, weight in actions(an_algorithm(settings).weigh(groups))] == weights


@pytest.mark.parametrize(
    "absent",
    [
        pytest.param(a_rollout("x", None), id="C1: no outcome"),
        pytest.param(a_rollout("x", 9.0, accepted=False), id="G3: not accepted"),
    ],
)
def test_who_has_no_part(absent: SampledRollout) -> None:
    groups = [[a_rollout("a", 1.0), absent, a_rollout("b", 0.0)]]
    for settings in (GrpoSettings(**PLAIN), PpoSettings(**PLAIN)):
        assert actions(an_algorithm(settings).weigh(groups)) == [(0.5, 1 / 4), (-0.5, 1 / 4)]


def test_a_rollout_without_samples_is_part_of_the_baseline() -> None:
    lost, _ = a_rollout("x", 0.0)
    groups = [[a_rollout("a", 1.0), (lost, []), a_rollout("b", 0.5)]]
    assert actions(an_algorithm(GrpoSettings(**PLAIN)).weigh(groups)) == [(0.5, 1 / 4), (0.0, 1 / 4)]


def test_the_sum_of_calls_rewards() -> None:
    groups = [
        [
            sampled(a_trajectory(a_call([1], [2], reward=0.5), a_call([9], [4], reward=0.25), name="a")),
            sampled(a_trajectory(a_call([1], [2], reward=0.25), a_call([9], [4], reward=None), name="b")),
            sampled(a_trajectory(a_call([1], [2], reward=None), name="c")),
        ]
    ]
    weighted = an_algorithm(GrpoSettings(reward="sum", **PLAIN)).weigh(groups)
    assert actions(weighted) == [*[(0.25, 1 / 4)] * 2, *[(-0.25, 1 / 4)] * 2]


def test_each_call_with_its_own_reward() -> None:
    calls = [
        a_call([1], [2], reward=1.0),
        a_call([1, 2, 3], [4, 5], reward=0.0),
        a_call([1, 2, 3, 4, 5, 6], [7], reward=None),
    ]
    other = a_trajectory(a_call([1], [8], reward=1.0), a_call([1], [9], reward=7.0, agent="judge"), name="b")
    algorithm = an_algorithm(GrpoSettings(reward="step", **PLAIN), agents=frozenset({""}))
    rules = SampleRules(needs_call_rewards=True, agents=frozenset({""}))
    groups = [[(each, samples_of(each, rules)) for each in (a_trajectory(*calls, name="a"), other)]]
    first, second = algorithm.weigh(groups)
    # Means 1/2 and 1, theirs 3/4. The call without a reward has no actions.
    assert first.advantages == (0, 0.25, 0, -0.75, -0.75)
    assert first.weights == (0, 1 / 6, 0, 1 / 6, 1 / 6)
    assert second.advantages == (0, 0.25)
    assert second.weights == (0, 1 / 2)


@pytest.mark.parametrize(
    ("min_outcome", "chosen"),
    [
        pytest.param(None, ["a", "b", "c"], id="all accepted"),
        pytest.param(0.5, ["a"], id="good ones"),
        pytest.param(0.0, ["a", "b"], id="those with an outcome"),
        pytest.param(2.0, [], id="none"),
    ],
)
def test_sft_takes_what_is_good_enough(min_outcome: float | None, chosen: list[str]) -> None:
    rollouts = {
        "a": a_rollout("a", 1.0),
        "b": a_rollout("b", 0.25),
        "c": a_rollout("c", None),
        "d": a_rollout("d", 1.0, accepted=False),
    }
    weighted = an_algorithm(SftSettings(min_outcome=min_outcome)).weigh([list(rollouts.values())])
    assert [each.sample.rollout_id for each in weighted] == [rollouts[name][0].rollout_id for name in chosen]
    assert actions(weighted) == [(1.0, 0.5 / len(chosen)) for _ in chosen]


def test_what_each_needs_and_its_loss() -> None:
    grpo = an_algorithm(GrpoSettings(old_logprobs="policy", kl_coef=0.1, tis_cap=0, num_epochs=2))
    ppo = an_algorithm(PpoSettings(num_mini_batches=4, dual_clip=3.0))
    sft = an_algorithm(SftSettings())
    assert [each.name for each in (grpo, ppo, sft)] == ["grpo", "ppo", "sft"]
    assert [each.needs_old_logprobs for each in (grpo, ppo, sft)] == [True, False, False]
    assert [each.needs_reference_logprobs for each in (grpo, ppo, sft)] == [True, False, False]
    assert (grpo.num_epochs, ppo.num_mini_batches, sft.num_epochs) == (2, 4, 1)
    assert grpo.loss == PolicyLoss(tis_cap=None, kl_coef=0.1, has_own_old=True)
    assert ppo.loss == PolicyLoss(clip_high=0.2, dual_clip=3.0)
    assert sft.loss == SupervisedLoss()


def test_grpo_by_hand_from_rollouts_to_the_gradient() -> None:
    """Two rollouts, outcomes 1 and 0, of 2 and 1 tokens: ±1/2 each, a half of the loss each."""
    good = a_trajectory(a_call([1], [2, 3]), name="a", outcome=1.0)
    bad = a_trajectory(a_call([1], [4]), name="b", outcome=0.0)
    algorithm = an_algorithm(GrpoSettings(**PLAIN))
    [batch] = micro_batches(algorithm.weigh([[sampled(good), sampled(bad)]]), max_tokens=100)
    logprobs_BS = batch.behaviour_logprobs_BS.clone().requires_grad_()
    output = algorithm.loss(logprobs_BS, torch.zeros_like(logprobs_BS), batch)
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs_BS.grad is not None
    assert logprobs_BS.grad.tolist() == [[0, -1 / 8, -1 / 8], [0, 1 / 4, 0]]
    assert output.loss.item() == 0
    assert output.sums["num_actions"].item() == 3
