"""Trajectory: an attempt's verdict and its ordered transitions, whole in one record."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat

from headrace.schemas.records.base import (
    Count,
    Identifier,
    Int32,
    Logprobs,
    Part,
    Record,
    SequenceId,
    Timestamp,
    TokenIds,
    UuidV7,
)
from headrace.schemas.records.rollout import AttemptOutcome, Mode


class GivenReward(Part):
    """A reward as it was given about one call."""

    reward_id: UuidV7
    name: str
    value: FiniteFloat


class Transition(Part):
    """One model call as an observation, an action and its reward.

    The prompt is the first `prefix_len` ids of the previous transition's prompt and response, and then
    `prompt_suffix_token_ids`: exact, and linear in size over many turns.
    """

    step: Annotated[Int32, Field(ge=0)]
    sequence_id: SequenceId
    span_id: str = ""
    agent: str = ""
    model: str = ""
    prefix_len: Annotated[Int32, Field(ge=0)]
    prompt_suffix_token_ids: TokenIds
    response_token_ids: TokenIds
    response_logprobs: Logprobs
    reward: FiniteFloat | None = None
    """Credited by the trajectory's rule; None is not 0."""
    rewards: tuple[GivenReward, ...] = ()
    is_last: bool
    finish_reason: str | None = None
    resource_name: str | None = None
    resource_version: Count | None = None
    trainable: bool
    reason: str | None = None


class Trajectory(Record):
    """One for every finished attempt, also when it has nothing to train on. The first in the log counts.

    Kind `closed` is a mark of the batcher's clock, for the group alone: its `reason` says which time is up.
    """

    key_field: ClassVar[str] = "group_id"

    kind: Literal["trajectory", "closed"] = "trajectory"
    rollout_id: UuidV7
    attempt_id: UuidV7
    attempt: Annotated[Int32, Field(ge=1)] = 1
    is_final: bool = True
    """The attempt's end is its rollout's: no other attempt follows it."""
    group_id: Identifier
    group_size: Annotated[Int32, Field(ge=1)] = 1
    task_id: str = ""
    mode: Mode = "train"
    status: AttemptOutcome
    accepted: bool
    reason: str | None = None
    """Why it was not accepted."""
    outcome: FiniteFloat | None = None
    credit_rule: Identifier
    last_sequence_id: Count | None = None
    num_events: Count = 0
    missing_sequence_ids: tuple[SequenceId, ...] = ()
    """The first 1000."""
    reward_ids: tuple[UuidV7, ...] = ()
    """The rewards that counted."""
    transitions: tuple[Transition, ...] = ()
    started_at: Timestamp | None = None
    ended_at: Timestamp | None = None

    def prompts(self) -> Iterator[tuple[int, ...]]:
        """Each transition's prompt in full, in order."""
        context: tuple[int, ...] = ()
        for transition in self.transitions:
            prompt = context[: transition.prefix_len] + transition.prompt_suffix_token_ids
            yield prompt
            context = prompt + transition.response_token_ids
