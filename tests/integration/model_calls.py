"""Calls of a real model: what is asked, and how what was recorded of it is checked.

Three reports are compared: the span, what vLLM told the client, and a forward pass of the same weights in
Hugging Face's code over the recorded ids. Where a grammar or a list of allowed tokens masks the distribution,
vLLM's logprobs are those after the mask, which Hugging Face can't recompute: they can't be below its own.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.integration.reference import TOLERANCE, Reference

from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.records import Generation, Span

Json = dict[str, Any]
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is the water? 4 é"}]
SCHEMA: Json = {
    "type": "object",
    "properties": {"door": {"type": "string", "enum": ["red", "green"]}, "is_open": {"type": "boolean"}},
    "required": ["door", "is_open"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "open_door",
            "description": "Open one of the doors.",
            "parameters": SCHEMA,
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "wait",
            "description": "Wait.",
            "parameters": {
                "type": "object",
                "properties": {"long": {"type": "boolean"}},
                "required": ["long"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
]
SAID = {"return_token_ids": True, "logprobs": True, "max_tokens": 24}
MASKED = ("response_format", "tool_choice")
WHOLE_OR_STREAM = pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def reference(vllm: VllmServer) -> Iterator[Reference]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Reference(vllm.model)
    torch.set_num_threads(before)


def made_by(span: Span) -> Generation:
    assert span.generation is not None
    return span.generation


def streamed(is_stream: bool) -> Json:  # noqa: FBT001
    return {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}


def check_logprobs(reference: Reference, made: Generation, body: Json) -> None:
    temperature = body.get("temperature", 1.0)
    if body.get("tool_choice") == "none" or not any(name in body for name in MASKED):
        assert reference.difference(made, temperature) < TOLERANCE
        return
    found = reference.logprobs(made, temperature)
    assert all(said >= bound - TOLERANCE for said, bound in zip(made.response_logprobs, found, strict=True))


def prompts_of(reference: Reference, body: Json) -> list[tuple[int, ...]]:
    if "messages" in body:
        return [reference.prompt_ids(body["messages"], body.get("tools"))] * body.get("n", 1)
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    if isinstance(prompts[0], int):
        return [tuple(prompts)]
    return [reference.ids(prompt) for prompt in prompts for _ in range(body.get("n", 1))]
