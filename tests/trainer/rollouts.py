"""Trajectories for tests of the trainer, with only what matters to the test spelled out."""

from collections.abc import Sequence
from typing import Any

from tests.builders import TIME, an_id

from headrace.schemas.records import Trajectory, Transition
from headrace.streams.processors.verdict import common_prefix_len
from headrace.trainer.sample import Sample, WeightedSample


def a_call(prompt: Sequence[int], response: Sequence[int], **fields: Any) -> dict[str, Any]:
    """A transition, before its place in the trajectory is known. Logprobs are -token/8."""
    defaults: dict[str, Any] = {
        "prompt": tuple(prompt),
        "response_token_ids": tuple(response),
        "response_logprobs": tuple(-token / 8 for token in response),
        "reward": 1.0,
        "trainable": True,
        "resource_name": "policy",
        "resource_version": 3,
    }
    return defaults | fields


def a_trajectory(*calls: dict[str, Any], name: str = "a", **fields: Any) -> Trajectory:
    """An accepted attempt that made these calls, its prompts stored as the assembler does."""
    transitions = []
    context: tuple[int, ...] = ()
    for step, call in enumerate(calls):
        values = dict(call)
        prompt = values.pop("prompt")
        shared = common_prefix_len(context, prompt)
        context = prompt + values["response_token_ids"]
        transitions.append(
            Transition(
                step=step,
                sequence_id=step + 1,
                prefix_len=shared,
                prompt_suffix_token_ids=prompt[shared:],
                is_last=step == len(calls) - 1,
                **values,
            )
        )
    defaults: dict[str, Any] = {
        "rollout_id": an_id("rollout", name),
        "attempt_id": an_id("attempt", name),
        "group_id": "group",
        "status": "succeeded",
        "accepted": True,
        "outcome": 1.0,
        "credit_rule": "outcome@1",
        "ended_at": TIME,
    }
    return Trajectory(transitions=tuple(transitions), **(defaults | fields))


def a_sample(
    prompt_len: int = 2, num_actions: int = 3, *, rollout: str = "a", rewards: float = 1.0, **fields: Any
) -> Sample:
    """Token t has id t+1; actions have logprob -0.5."""
    num_tokens = prompt_len + num_actions
    defaults: dict[str, Any] = {
        "rollout_id": rollout,
        "group_id": "group",
        "token_ids": tuple(range(1, num_tokens + 1)),
        "is_action": (False,) * prompt_len + (True,) * num_actions,
        "behaviour_logprobs": (0.0,) * prompt_len + (-0.5,) * num_actions,
        "rewards": (0.0,) * prompt_len + (rewards,) * num_actions,
    }
    return Sample(**(defaults | fields))


def a_weighted_sample(
    prompt_len: int = 2, num_actions: int = 3, *, weight: float = 1.0, advantage: float = 1.0, **fields: Any
) -> WeightedSample:
    sample = a_sample(prompt_len, num_actions, **fields)
    return WeightedSample(
        sample,
        advantages=tuple(advantage * is_action for is_action in sample.is_action),
        weights=tuple(weight * is_action for is_action in sample.is_action),
    )
