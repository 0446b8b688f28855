"""What a client hears of an answer, in one piece or as a stream: put together without the proxy's code."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]


@dataclass
class Heard:
    """One choice; ids and logprobs are vLLM's own report, for a client that asked for them."""

    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Name and arguments of each."""
    finish_reason: str | None = None
    stop_reason: Any = None


@dataclass
class Answer:
    choices: dict[int, Heard] = field(default_factory=dict)
    num_tokens: int = -1
    """As its usage says, of all choices."""


def answer_of(response: httpx.Response) -> Answer:
    """Of chat or of completions."""
    assert response.status_code == 200, response.text
    answer = Answer()
    for payload in _payloads(response):
        usage = payload.get("usage")
        if usage is not None:
            answer.num_tokens = usage["completion_tokens"]
        for choice in payload["choices"]:
            heard = answer.choices.setdefault(choice["index"], Heard())
            heard.prompt += payload.get("prompt_token_ids") or choice.get("prompt_token_ids") or []
            _take(heard, choice)
    return answer


def _payloads(response: httpx.Response) -> Iterator[Json]:
    if "text/event-stream" not in response.headers["content-type"]:
        yield response.json()
        return
    *events, done = [each.removeprefix("data: ") for each in response.text.split("\n\n") if each]
    assert done == "[DONE]"
    yield from map(json.loads, events)


def _take(heard: Heard, choice: Json) -> None:
    heard.ids += choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    heard.logprobs += [each["logprob"] for each in logprobs.get("content") or []]
    heard.logprobs += logprobs.get("token_logprobs") or []
    heard.finish_reason = choice.get("finish_reason") or heard.finish_reason
    heard.stop_reason = choice.get("stop_reason") or heard.stop_reason
    message = choice.get("message") or choice.get("delta") or {}
    heard.text += message.get("content") or choice.get("text") or ""
    for place, call in enumerate(message.get("tool_calls") or []):
        words = heard.calls.setdefault(call.get("index", place), ["", ""])
        words[0] += call["function"].get("name") or ""
        words[1] += call["function"].get("arguments") or ""
