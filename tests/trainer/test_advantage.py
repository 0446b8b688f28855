import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.advantage import action_weights, baselines
from headrace.trainer.settings import LossAggregation

HALF_ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        # mean 1/2, unbiased std sqrt((1/4 + 1/4)/1)
        pytest.param([[1], [0]], {}, [[HALF_ROOT], [-HALF_ROOT]], id="two"),
        # mean 1, std sqrt((4 + 1 + 1 + 0)/3) = sqrt(2)
        pytest.param([[3], [0], [0], [1]], {}, [[2 / 2**0.5], [-(0.5**0.5)], [-(0.5**0.5)], [0]], id="four"),
        pytest.param([[1], [0], [0]], {"normalize_std": False}, [[2 / 3], [-1 / 3], [-1 / 3]], id="Dr. GRPO"),
        # The others' means are 0, 1/2, 1/2.
        pytest.param(
            [[1], [0], [0]],
            {"normalize_std": False, "baseline": "leave_one_out"},
            [[1], [-0.5], [-0.5]],
            id="leave one out",
        ),
        # means 1/2 and 1, theirs 3/4; calls are 1/4, -3/4, 1/4 from it
        pytest.param([[1, 0], [1]], {"normalize_std": False}, [[0.25, -0.75], [0.25]], id="calls"),
        # s² = ((1/16 + 9/16)/2 + 1/16)/1 = 3/8
        pytest.param(
            [[1, 0], [1]],
            {},
            [[0.25 / 0.375**0.5, -0.75 / 0.375**0.5], [0.25 / 0.375**0.5]],
            id="calls over their std",
        ),
        pytest.param(
            [[1, 0], [1]],
            {"normalize_std": False, "baseline": "leave_one_out"},
            [[0, -1], [0.5]],
            id="calls, leave one out",
        ),
        pytest.param([[1], [], [0]], {}, [[HALF_ROOT], [], [-HALF_ROOT]], id="one has no reward"),
        pytest.param([[1, 0]], {}, [[0, 0]], id="alone"),
        pytest.param([[1], []], {}, [[0], []], id="alone among those with a reward"),
        pytest.param([[0.3], [0.3], [0.3]], {}, [[0], [0], [0]], id="no contrast"),
        pytest.param([[0.3], [0.1 + 0.2]], {}, [[0], [0]], id="contrast by rounding alone"),
        pytest.param([], {}, [], id="none"),
    ],
)
def test_baselines(rewards: list[list[float]], options: dict[str, Any], expected: list[list[float]]) -> None:
    found = baselines(rewards, **options)
    advantages = [[base.advantage(r) for r in each] for base, each in zip(found, rewards, strict=True)]
    assert len(advantages) == len(expected)
    for one, other in zip(advantages, expected, strict=True):
        assert one == pytest.approx(other, abs=3e-6)


all_options = st.fixed_dictionaries(
    {"baseline": st.sampled_from(["mean", "leave_one_out"]), "normalize_std": st.booleans()}
)
rewards_of_groups = st.lists(st.floats(-10, 10, width=16), min_size=2, max_size=8)


@given(rewards_of_groups, st.integers(1, 5), all_options)
def test_advantages_sum_to_zero_and_the_number_of_calls_does_not_show(
    rewards: list[float], num_calls: int, options: dict[str, Any]
) -> None:
    found = baselines([[each] for each in rewards], **options)
    assert sum(b.advantage(r) for b, r in zip(found, rewards, strict=True)) == pytest.approx(0, abs=1e-6)
    repeated = baselines([[rewards[0]] * num_calls, *([each] for each in rewards[1:])], **options)
    for one, other in zip(found, repeated, strict=True):
        assert one == pytest.approx(other)


@given(rewards_of_groups.flatmap(lambda each: st.tuples(st.just(each), st.permutations(each))))
def test_the_order_of_rollouts_does_not_show(given: tuple[list[float], list[float]]) -> None:
    rewards, shuffled = given
    assert baselines([[each] for each in rewards])[0] == baselines([[each] for each in shuffled])[0]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("rollout_mean", [1 / 4, 1 / 8, 0]),
        ("token_mean", [1 / 6, 1 / 6, 0]),
        ("sequence_sum", [1 / 2, 1 / 2, 0]),
    ],
)
def test_weights(aggregation: LossAggregation, expected: list[float]) -> None:
    assert action_weights([2, 4, 0], aggregation) == expected
    assert action_weights([], aggregation) == []
    assert action_weights([0], aggregation) == [0]
