"""Samples: from an attempt's transitions to sequences to train on, the engine's ids only (C7).

A call whose full prompt begins with all of an open sequence, id for id, is merged into it: the prompt's
further ids are context, the response's are actions. Where several do, the longest is continued, of equal
ones the first; each is continued in place, so that of two calls that branch off one sequence (parallel
calls) the first continues it and the other begins a new one, with its prompt in full. What an action is
conditioned on is therefore always exactly the prompt that the engine saw.

A call that can't be trained on takes no part: where its ids are in a later call's prompt, they are context
there, as the engine saw them, and nothing else of it can be known to be exact (C6).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self

from headrace.schemas.records import Trajectory, Transition
from headrace.trainer.sample import Sample
from headrace.trainer.settings import TrainSettings

NOT_ACCEPTED = "not_accepted"
NOT_FOR_TRAINING = "not_for_training"
OTHER_AGENT = "other_agent"
OTHER_RESOURCE = "other_resource"
UNTRAINABLE = "untrainable"
NO_TOKENS = "no_tokens"
OTHER_VOCABULARY = "other_vocabulary"
LOGPROBS_MISMATCH = "logprobs_mismatch"
NO_REWARD = "no_reward"
TOO_LONG = "too_long"
CUT = "cut"


@dataclass(frozen=True, slots=True)
class SampleRules:
    """Which calls are trained on, and how long a sequence may be."""

    max_tokens: int | None = None
    too_long: Literal["cut", "drop"] = "cut"
    agents: frozenset[str] = frozenset()
    """Empty: all."""
    resource: str | None = None
    """Calls that name another resource came from another model."""
    needs_call_rewards: bool = False
    """A call without a credited reward is left out: None is not 0."""
    vocabulary: int | None = None
    """How many token ids the model has: a call with others came from another."""

    @classmethod
    def from_settings(
        cls, settings: TrainSettings, *, max_positions: int | None = None, vocabulary: int | None = None
    ) -> Self:
        """For a model of so many positions and token ids."""
        wanted = settings.data.max_sequence_tokens
        return cls(
            max_tokens=wanted if max_positions is None else min(wanted, max_positions),
            too_long=settings.data.too_long,
            agents=frozenset(settings.data.agents),
            resource=settings.model.resource,
            needs_call_rewards=settings.algorithm.needs_call_rewards,
            vocabulary=vocabulary,
        )

    def why_not_selected(self, call: Transition) -> str | None:
        """Why it is none of the trained policy's calls; None if it is one."""
        if self.agents and call.agent not in self.agents:
            return OTHER_AGENT
        if self.resource is not None and call.resource_name not in {None, self.resource}:
            return OTHER_RESOURCE
        return None

    def knows(self, *token_ids: tuple[int, ...]) -> bool:
        return self.vocabulary is None or all(max(ids, default=0) < self.vocabulary for ids in token_ids)

    def call_rewards(self, trajectory: Trajectory) -> list[float]:
        """The credited rewards of the policy's calls, trainable or not; those without one are absent."""
        return [
            call.reward
            for call in trajectory.transitions
            if call.reward is not None and self.why_not_selected(call) is None
        ]


def why_no_actions(call: Transition, prompt: tuple[int, ...], rules: SampleRules) -> str | None:
    """Why no token of this call is trained on; None if its response is."""
    checks = (
        (not call.trainable, UNTRAINABLE),
        (not prompt or not call.response_token_ids, NO_TOKENS),
        (len(call.response_token_ids) != len(call.response_logprobs), LOGPROBS_MISMATCH),
        (not rules.knows(prompt, call.response_token_ids), OTHER_VOCABULARY),
        (rules.needs_call_rewards and call.reward is None, NO_REWARD),
    )
    return rules.why_not_selected(call) or next((reason for applies, reason in checks if applies), None)


def samples_of(
    trajectory: Trajectory, rules: SampleRules | None = None, left_out: Counter[str] | None = None
) -> list[Sample]:
    """The sequences of an attempt, in the order in which they began; each has at least one action.

    What is left out is counted in `left_out` by reason: attempts that may not train (G3), calls, and
    sequences over `max_tokens`, which are dropped, or cut there as far as an action remains.
    """
    rules = SampleRules() if rules is None else rules
    left_out = Counter() if left_out is None else left_out
    if not trajectory.accepted or trajectory.mode != "train":
        left_out[NOT_FOR_TRAINING if trajectory.accepted else NOT_ACCEPTED] += 1
        return []
    open_sequences: list[_Sequence] = []
    for call, prompt in zip(trajectory.transitions, trajectory.prompts(), strict=True):
        reason = why_no_actions(call, prompt, rules)
        if reason is not None:
            left_out[reason] += 1
            continue
        continued = max((each for each in open_sequences if each.is_prefix_of(prompt)), key=len, default=None)
        if continued is None:
            continued = _Sequence()
            open_sequences.append(continued)
        continued.add(call, prompt)
    return list(_within(rules, open_sequences, trajectory, left_out))


class _Response(NamedTuple):
    start: int
    call: Transition


@dataclass(slots=True)
class _Sequence:
    token_ids: tuple[int, ...] = ()
    responses: list[_Response] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    def is_prefix_of(self, prompt: tuple[int, ...]) -> bool:
        return prompt[: len(self.token_ids)] == self.token_ids

    def add(self, call: Transition, prompt: tuple[int, ...]) -> None:
        """Continue with a call whose prompt begins with this sequence."""
        self.responses.append(_Response(len(prompt), call))
        self.token_ids = prompt + call.response_token_ids

    def sample(self, trajectory: Trajectory, num_tokens: int) -> Sample:
        """Its first tokens."""
        is_action = [False] * num_tokens
        logprobs = [0.0] * num_tokens
        rewards = [0.0] * num_tokens
        versions = []
        for start, call in self.responses:
            if start >= num_tokens:
                break
            end = min(start + len(call.response_token_ids), num_tokens)
            is_action[start:end] = [True] * (end - start)
            logprobs[start:end] = call.response_logprobs[: end - start]
            rewards[start:end] = [call.reward or 0.0] * (end - start)
            versions.append(call.resource_version)
        return Sample(
            rollout_id=trajectory.rollout_id,
            group_id=trajectory.group_id,
            token_ids=self.token_ids[:num_tokens],
            is_action=tuple(is_action),
            behaviour_logprobs=tuple(logprobs),
            rewards=tuple(rewards),
            min_version=min((version for version in versions if version is not None), default=None),
        )


def _within(
    rules: SampleRules, sequences: list[_Sequence], trajectory: Trajectory, left_out: Counter[str]
) -> Iterator[Sample]:
    """The sequences as samples of at most `max_tokens`."""
    for sequence in sequences:
        num_tokens = len(sequence)
        if rules.max_tokens is not None and num_tokens > rules.max_tokens:
            if rules.too_long == "drop" or sequence.responses[0].start >= rules.max_tokens:
                left_out[TOO_LONG] += 1
                continue
            num_tokens = rules.max_tokens
            left_out[CUT] += 1
        yield sequence.sample(trajectory, num_tokens)
