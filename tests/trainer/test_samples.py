from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.rollouts import a_call, a_trajectory

from headrace.schemas.records import Trajectory
from headrace.trainer.samples import SampleRules, samples_of


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        pytest.param([([1, 2], [3, 4])], [([1, 2, 3, 4], "..##")], id="one call"),
        pytest.param(
            [([1, 2], [3]), ([1, 2, 3, 9], [4]), ([1, 2, 3, 9, 4, 8, 7], [5, 6])],
            [([1, 2, 3, 9, 4, 8, 7, 5, 6], "..#.#..##")],
            id="turns merge",
        ),
        pytest.param(
            [([1, 2], [3]), ([1, 2, 3], [4])], [([1, 2, 3, 4], "..##")], id="nothing between two responses"
        ),
        pytest.param(
            [([1, 2], [3, 4]), ([1, 2, 3, 5], [6])],
            [([1, 2, 3, 4], "..##"), ([1, 2, 3, 5, 6], "....#")],
            id="C7: the response came back as other ids",
        ),
        pytest.param(
            [([1, 2, 3], [4]), ([1, 2], [5])],
            [([1, 2, 3, 4], "...#"), ([1, 2, 5], "..#")],
            id="a shorter prompt",
        ),
        pytest.param(
            [([1], [2]), ([1], [3]), ([1, 3, 9], [4]), ([1, 2, 9], [5])],
            [([1, 2, 9, 5], ".#.#"), ([1, 3, 9, 4], ".#.#")],
            id="two branches, each continued",
        ),
        pytest.param(
            [([1], [2]), ([1, 2, 3], [4]), ([1, 2, 3], [5])],
            [([1, 2, 3, 4], ".#.#"), ([1, 2, 3, 5], "...#")],
            id="the first of two continues, the other has its prompt in full",
        ),
        pytest.param(
            [([1], [2]), ([7], [8]), ([1, 2, 3, 4], [5]), ([7, 8, 1], [2])],
            [([1, 2, 3, 4, 5], ".#..#"), ([7, 8, 1, 2], ".#.#")],
            id="interleaved conversations",
        ),
        pytest.param(
            [([1], [2]), ([1, 2, 3], [4]), ([1], [2]), ([1, 2, 3, 4, 5], [6])],
            [([1, 2, 3, 4, 5, 6], ".#.#.#"), ([1, 2], ".#")],
            id="the longest is continued",
        ),
        pytest.param([([1], [2]), ([1], [2])], [([1, 2], ".#"), ([1, 2], ".#")], id="the same twice"),
        pytest.param([], [], id="no calls"),
    ],
)
def test_calls_become_sequences(
    calls: list[tuple[list[int], list[int]]], expected: list[tuple[list[int], str]]
) -> None:
    samples = samples_of(a_trajectory(*(a_call(prompt, response) for prompt, response in calls)))
    assert [(list(each.token_ids), _shape(each.is_action)) for each in samples] == expected


def test_what_an_action_carries() -> None:
    trajectory = a_trajectory(
        a_call([1, 2], [3], reward=0.5, resource_version=7),
        a_call([1, 2, 3, 4], [5, 6], reward=None, resource_version=6),
        name="x",
        group_id="g",
    )
    [sample] = samples_of(trajectory)
    assert sample.rollout_id == trajectory.rollout_id
    assert sample.group_id == "g"
    assert sample.behaviour_logprobs == (0, 0, -3 / 8, 0, -5 / 8, -6 / 8)
    assert sample.rewards == (0, 0, 0.5, 0, 0, 0)
    assert sample.min_version == 6
    assert sample.num_actions == 3


@pytest.mark.parametrize(
    ("fields", "rules", "reason"),
    [
        pytest.param(
            {"trainable": False, "reason": "usage_mismatch"}, {}, "untrainable", id="C6 untrainable"
        ),
        pytest.param(
            {"response_token_ids": (), "response_logprobs": ()}, {}, "no_tokens", id="C3 no response"
        ),
        pytest.param({"prompt": ()}, {}, "no_tokens", id="C3 no prompt"),
        pytest.param({"response_logprobs": (-1.0,)}, {}, "logprobs_mismatch", id="G6 logprobs"),
        pytest.param({"reward": None}, {"needs_call_rewards": True}, "no_reward", id="C1 None is not 0"),
        pytest.param({"agent": "judge"}, {"agents": frozenset({""})}, "other_agent", id="agent"),
        pytest.param({"resource_name": "judge"}, {"resource": "policy"}, "other_resource", id="resource"),
    ],
)
def test_a_call_that_cannot_train_is_counted_and_context_at_most(
    fields: dict[str, Any], rules: dict[str, Any], reason: str
) -> None:
    calls = [
        a_call([1, 2], [3]),
        a_call([1, 2, 3, 4], [5, 6]) | fields,
        a_call([1, 2, 3, 4, 5, 6, 7], [8]),
    ]
    left_out: Counter[str] = Counter()
    [sample] = samples_of(a_trajectory(*calls), SampleRules(**rules), left_out)
    assert sample.token_ids == (1, 2, 3, 4, 5, 6, 7, 8)
    assert _shape(sample.is_action) == "..#....#"
    assert left_out == {reason: 1}


@pytest.mark.parametrize(("prompt", "response"), [([1, 10], [3]), ([1, 2], [3, 10])])
def test_a_call_with_ids_that_the_model_has_not_came_from_another(
    prompt: list[int], response: list[int]
) -> None:
    """C3's kind: it would end the run, and the next one."""
    left_out: Counter[str] = Counter()
    rules = SampleRules(vocabulary=10)
    assert samples_of(a_trajectory(a_call(prompt, response)), rules, left_out) == []
    assert left_out == {"other_vocabulary": 1}
    assert len(samples_of(a_trajectory(a_call([1, 2], [9])), rules)) == 1


def test_a_lossy_call_does_not_part_what_goes_on_without_it() -> None:
    lossy = a_call([1, 2, 3, 4], [5], trainable=False)
    [sample] = samples_of(a_trajectory(a_call([1, 2], [3]), lossy, a_call([1, 2, 3, 4, 5, 6], [8])))
    assert _shape(sample.is_action) == "..#...#"


def test_calls_that_name_no_resource_are_the_policys() -> None:
    call = a_call([1], [2], resource_name=None, resource_version=None)
    [sample] = samples_of(a_trajectory(call), SampleRules(resource="policy"))
    assert sample.min_version is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"accepted": False, "reason": "attempt_timeout"}, "not_accepted", id="G3"),
        pytest.param({"mode": "val"}, "not_for_training", id="val"),
        pytest.param({"mode": "test"}, "not_for_training", id="test"),
    ],
)
def test_attempts_that_may_not_train(fields: dict[str, Any], reason: str) -> None:
    left_out: Counter[str] = Counter()
    assert samples_of(a_trajectory(a_call([1], [2]), **fields), left_out=left_out) == []
    assert left_out == {reason: 1}


@pytest.mark.parametrize(
    ("max_tokens", "too_long", "shapes", "left_out"),
    [
        pytest.param(8, "cut", ["..##..##"], {}, id="fits"),
        pytest.param(7, "cut", ["..##..#"], {"cut": 1}, id="within a response"),
        pytest.param(5, "cut", ["..##."], {"cut": 1}, id="within a prompt"),
        pytest.param(3, "cut", ["..#"], {"cut": 1}, id="one action left"),
        pytest.param(2, "cut", [], {"too_long": 1}, id="no action left"),
        pytest.param(7, "drop", [], {"too_long": 1}, id="dropped"),
    ],
)
def test_long_sequences(max_tokens: int, too_long: Any, shapes: list[str], left_out: dict[str, int]) -> None:
    trajectory = a_trajectory(
        a_call([1, 2], [3, 4], resource_version=5), a_call([1, 2, 3, 4, 5, 6], [7, 8], resource_version=4)
    )
    counted: Counter[str] = Counter()
    samples = samples_of(trajectory, SampleRules(max_tokens=max_tokens, too_long=too_long), counted)
    assert [_shape(each.is_action) for each in samples] == shapes
    assert counted == left_out
    for each in samples:
        assert len({len(each), len(each.is_action), len(each.behaviour_logprobs), len(each.rewards)}) == 1
        assert each.min_version == (4 if len(each) > 6 else 5)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """Calls that begin anew, go on from an earlier one, or change it; few ids, so that many coincide.

    Each response token has a logprob of its own, which tells it apart.
    """
    ids = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    contexts: list[tuple[int, ...]] = [(1,)]
    calls = []
    for step in range(draw(st.integers(0, 8))):
        base = draw(st.sampled_from(contexts))
        prompt = base[: draw(st.integers(0, len(base)))] if draw(st.booleans()) else base
        prompt += draw(ids)
        response = draw(ids)
        contexts.append(prompt + response)
        trainable = draw(st.booleans()) or draw(st.booleans())
        logprobs = tuple(-(step + 1) - place / 16 for place in range(len(response)))
        calls.append(
            a_call(prompt, response, response_logprobs=logprobs, trainable=trainable, reward=step + 1.0)
        )
    return a_trajectory(*calls)


@given(trajectories(), st.integers(1, 20))
def test_every_trainable_token_is_an_action_once_after_the_prompt_that_the_engine_saw(
    trajectory: Trajectory, max_tokens: int
) -> None:
    wanted = {
        (call.step, place): (*prompt, *call.response_token_ids[: place + 1])
        for call, prompt in zip(trajectory.transitions, trajectory.prompts(), strict=True)
        for place in range(len(call.response_token_ids))
        if call.trainable and prompt
    }
    samples = samples_of(trajectory)
    found = []
    for sample in samples:
        assert sample.is_action[-1]
        for t, is_action in enumerate(sample.is_action):
            if not is_action:
                assert sample.behaviour_logprobs[t] == sample.rewards[t] == 0
                continue
            step, place = divmod(-sample.behaviour_logprobs[t] * 16, 16)
            found.append((int(step) - 1, int(place)))
            assert sample.token_ids[: t + 1] == wanted[found[-1]]
            assert sample.rewards[t] == step
    assert sorted(found) == sorted(wanted)
    cut = samples_of(trajectory, SampleRules(max_tokens=max_tokens))
    uncut = [each for each in samples if any(each.is_action[:max_tokens])]
    assert [each.is_action for each in cut] == [each.is_action[:max_tokens] for each in uncut]
    assert [each.token_ids for each in cut] == [each.token_ids[:max_tokens] for each in uncut]


def _shape(is_action: tuple[bool, ...]) -> str:
    return "".join("#" if each else "." for each in is_action)
