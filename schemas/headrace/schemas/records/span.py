"""Span: a timed operation within an attempt; with a generation, a model call."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

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


class SpanEvent(Part):
    """Something that happened at a moment within a span."""

    name: str
    time: Timestamp
    attributes: dict[str, str] = {}


class SpanLink(Part):
    """Another span that this one has to do with."""

    trace_id: str
    span_id: str
    attributes: dict[str, str] = {}


class Generation(Part):
    """A model call as the engine reported it (G6): ids and logprobs are never made up.

    Lists may disagree in length, since what the engine said is kept; then the call is untrainable.
    """

    agent: str = ""
    model: str = ""
    resource_name: str | None = None
    resource_version: Count | None = None
    """The weights version that served the call, from first to last token (G9)."""
    request: str = ""
    response: str = ""
    prompt_token_ids: TokenIds = ()
    response_token_ids: TokenIds = ()
    response_logprobs: Logprobs = ()
    """Natural log, of the sampled tokens."""
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    """As the engine's usage says."""
    finish_reason: str | None = None
    sampling: dict[str, FiniteFloat] = {}
    choice_index: Annotated[Int32, Field(ge=0)] = 0
    num_choices: Annotated[Int32, Field(ge=1)] = 1
    untrainable_reason: str | None = None

    def why_untrainable(self) -> str | None:
        """The reason that this call can't train, or None: lengths must agree with usage (G6, C3, C6)."""
        if self.untrainable_reason:
            return self.untrainable_reason
        if not self.response_token_ids:
            return "no_response_token_ids"
        if not self.prompt_token_ids:
            return "no_prompt_token_ids"
        if len(self.response_token_ids) != len(self.response_logprobs):
            return "logprobs_mismatch"
        if self.completion_tokens is not None and self.completion_tokens != len(self.response_token_ids):
            return "usage_mismatch"
        return None


class Span(Record):
    """Ordered within its attempt by sequence_id alone (G2); times are for people.

    Kind `void` accounts for an id that was handed out and not used. Kind `closed` marks the place in
    this partition after which nothing of the attempt counts; it has no sequence id.
    """

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
    attempt_id: UuidV7
    sequence_id: SequenceId | None = None
    kind: Literal["internal", "client", "server", "producer", "consumer", "void", "closed"] = "internal"
    trace_id: str = ""
    span_id: Identifier
    parent_span_id: str = ""
    name: str = ""
    start_time: Timestamp
    end_time: Timestamp
    status: Literal["unset", "ok", "error"] = "unset"
    status_message: str = ""
    attributes: dict[str, str] = {}
    resource_attributes: dict[str, str] = {}
    scope: str = ""
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    generation: Generation | None = None

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.kind == "closed") != (self.sequence_id is None):
            raise ValueError("a span has a sequence_id, and a closing mark has none")
        return self
