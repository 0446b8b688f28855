"""Capture: what an upstream's answer says, choice by choice, in one piece or in chunks. Pure.

Token ids and logprobs are the engine's own, in its order (G6). Nothing is checked against anything here: what
does not fit together is kept as it is, and `Generation.why_untrainable` says so.
"""

from dataclasses import dataclass, field
from typing import Any

from headrace.proxy.ask import Operation
from headrace.proxy.dialect import Json
from headrace.proxy.merge import merge_delta, ordered_tool_calls

_HEAD = ("id", "object", "created", "model", "system_fingerprint", "service_tier")


@dataclass(slots=True)
class CapturedChoice:
    """One answer of a call, whole or as far as it came."""

    index: int
    prompt_token_ids: list[int] = field(default_factory=list)
    """Its own, where the choices of a call have different prompts."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    message: Json = field(default_factory=dict)
    text: list[str] = field(default_factory=list)

    def answer(self, operation: Operation) -> Json:
        """As `choices[]` has it, without ids and logprobs, which stand beside it."""
        body: Json = {"index": self.index, "finish_reason": self.finish_reason}
        if self.stop_reason is not None:
            body["stop_reason"] = self.stop_reason
        if operation == "chat":
            return body | {"message": ordered_tool_calls(self.message)}
        return body | {"text": "".join(self.text)}


class Capture:
    """Of one call. Feed it before the payload is stripped for the client."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.choices: dict[int, CapturedChoice] = {}
        self.prompt_token_ids: list[int] = []
        self.usage: Json | None = None
        self.head: Json = {}

    def take(self, payload: Json) -> None:
        """An answer in one piece, or a chunk of one."""
        if not self.head:
            self.head = {name: payload[name] for name in _HEAD if name in payload}
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        ids = payload.get("prompt_token_ids")
        if isinstance(ids, list):
            self.prompt_token_ids = ids
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._take_choice(choice)

    @property
    def model(self) -> str:
        return str(self.head.get("model") or "")

    def is_finished(self, num_choices: int) -> bool:
        """Every choice, and as many as were asked for, has said why it ended."""
        is_ended = all(choice.finish_reason is not None for choice in self.choices.values())
        return is_ended and len(self.choices) >= max(num_choices, 1)

    def prompt_of(self, choice: CapturedChoice) -> list[int]:
        return choice.prompt_token_ids or self.prompt_token_ids

    def completion_tokens_of(self, choice: CapturedChoice) -> int | None:
        """As usage says; of several choices it says the sum, so only where their ids add up to it."""
        total = self._counted("completion_tokens")
        if total is None or len(self.choices) == 1:
            return total
        if sum(len(each.token_ids) for each in self.choices.values()) == total:
            return len(choice.token_ids)
        return None

    @property
    def completion_tokens(self) -> int | None:
        """Of all choices."""
        return self._counted("completion_tokens")

    @property
    def adds_up(self) -> bool:
        """The ids of all choices are as many as usage says (C6); True where it says nothing."""
        total = self._counted("completion_tokens")
        return total is None or sum(len(each.token_ids) for each in self.choices.values()) == total

    @property
    def prompt_tokens(self) -> int | None:
        return self._counted("prompt_tokens")

    def _counted(self, name: str) -> int | None:
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) and value >= 0 else None

    def _take_choice(self, payload: Json) -> None:
        index = payload.get("index")
        index = index if isinstance(index, int) and index >= 0 else 0
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = CapturedChoice(index)
        ids = payload.get("token_ids")
        if isinstance(ids, list):
            choice.token_ids += ids
        ids = payload.get("prompt_token_ids")
        if isinstance(ids, list):
            choice.prompt_token_ids = ids
        choice.logprobs += _logprobs(payload.get("logprobs"))
        choice.finish_reason = payload.get("finish_reason") or choice.finish_reason
        stop_reason = payload.get("stop_reason")
        choice.stop_reason = choice.stop_reason if stop_reason is None else stop_reason
        if self.operation == "chat":
            message = payload.get("delta") or payload.get("message")
            if isinstance(message, dict):
                merge_delta(choice.message, message)
        elif isinstance(text := payload.get("text"), str):
            choice.text.append(text)


def _logprobs(given: Any) -> list[float]:  # noqa: ANN401  JSON
    """Of the sampled tokens: chat's form, or that of completions."""
    if not isinstance(given, dict):
        return []
    content = given.get("content")
    if isinstance(content, list):
        return [entry["logprob"] for entry in content]
    values = given.get("token_logprobs")
    return values if isinstance(values, list) else []
