"""What a line of recorded chats must be: the fields that headrace reads, strictly typed.

Fields it does not read may be anything; they stay in the verbatim request and response.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from headrace.schemas.records.base import Count, Identifier, Int32, TokenIds

MAX_SECONDS = 253_402_300_800
"""The year 10000; milliseconds taken for seconds are beyond it."""


def _as_tuple(value: object) -> object:
    """Strict models want tuples, and JSON has lists."""
    return tuple(value) if isinstance(value, list) else value


def _is_utf8(value: str) -> str:
    """JSON can escape half a surrogate pair, and Avro can't hold it."""
    value.encode()
    return value


Text = Annotated[str, AfterValidator(_is_utf8)]
Ids = Annotated[TokenIds, BeforeValidator(_as_tuple)]


class _Open(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class Request(_Open):
    """A chat-completion request."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    model: Text = ""
    stop: str | list[str] | None = None

    def numbers(self) -> Iterator[tuple[str, int | float]]:
        """The request's numbers: how it was sampled."""
        for name, value in (self.model_extra or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield name, value

    def sampling(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.numbers()}


class _TokenLogprob(_Open):
    logprob: FiniteFloat


class _ChoiceLogprobs(_Open):
    content: list[_TokenLogprob] | None = None


class Choice(_Open):
    """One answer. `token_ids` and `prompt_token_ids` are vLLM's, with `return_token_ids`."""

    index: Annotated[Int32, Field(ge=0)] = 0
    message: dict[str, Any]
    finish_reason: Text | None = None
    logprobs: _ChoiceLogprobs | None = None
    token_ids: Ids | None = None
    prompt_token_ids: Ids | None = None

    def sampled_logprobs(self) -> tuple[float, ...]:
        content = self.logprobs.content if self.logprobs else None
        return tuple(token.logprob for token in content or ())


class _PromptDetails(_Open):
    cached_tokens: Count | None = None


class Usage(_Open):
    """Over all choices together."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None

    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class Response(_Open):
    """A chat completion; an error response has no choices and is refused."""

    id: Text | None = None
    created: Annotated[FiniteFloat, Field(gt=0, lt=MAX_SECONDS)]
    """Seconds, UTC."""
    model: Text | None = None
    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None
    prompt_token_ids: Ids | None = None

    @model_validator(mode="after")
    def _choices_are_distinct(self) -> Self:
        if len({choice.index for choice in self.choices}) != len(self.choices):
            raise ValueError("two choices have the same index")
        return self


class StepReward(BaseModel):
    """A reward for a choice of this line, by its place."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    value: FiniteFloat
    name: Identifier = "step"
    choice: Annotated[int, Field(ge=0)] = 0
    source: Text = ""


class ChatLine(_Open):
    """One exchange, with what its recorder knew beside it."""

    request: Request
    response: Response
    reward: FiniteFloat | None = None
    rewards: list[FiniteFloat | StepReward] = []
    agent: Text = ""
    task_id: Text = ""
    group_id: Identifier | None = None

    @model_validator(mode="after")
    def _rewards_have_choices(self) -> Self:
        if any(reward.choice >= len(self.response.choices) for reward in self.step_rewards()):
            raise ValueError("a reward is for a choice that is not there")
        return self

    @model_validator(mode="after")
    def _others_are_utf8(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            _is_utf8(name + value if isinstance(value, str) else name)
        return self

    def step_rewards(self) -> list[StepReward]:
        return [
            given if isinstance(given, StepReward) else StepReward(value=given, choice=place)
            for place, given in enumerate(self.rewards)
        ]

    def ordered_choices(self) -> list[Choice]:
        return sorted(self.response.choices, key=lambda choice: choice.index)

    def completion_tokens_of(self, choice: Choice) -> int | None:
        """Usage counts all choices together: of several, one's share is known only from ids that add up."""
        total = self.response.usage.completion_tokens if self.response.usage else None
        if total is None or len(self.response.choices) == 1:
            return total
        lengths = [len(each.token_ids or ()) for each in self.response.choices]
        return len(choice.token_ids or ()) if sum(lengths) == total else None


_NAMES = {
    name
    for model in (Request, Response, Choice, Usage, StepReward, ChatLine, _ChoiceLogprobs, _TokenLogprob)
    for name in model.model_fields
}


def describe_line(error: ValidationError) -> str:
    """What is wrong with a line, by field, without values: they may be prompts."""
    return "; ".join(
        f"{'.'.join(_place(part) for part in problem['loc']) or 'line'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]
    )


def _place(part: str | int) -> str:
    return str(part) if isinstance(part, int) or part in _NAMES else "*"
