"""G6 on real vLLM: what the proxy records is what the engine generated, id for id, at its own odds."""

import json
import re

import pytest
from tests.integration.heard import Answer, Heard, answer_of
from tests.integration.model_calls import (
    MESSAGES,
    SAID,
    SCHEMA,
    TOOLS,
    WHOLE_OR_STREAM,
    Json,
    check_logprobs,
    made_by,
    prompts_of,
    reference,
    streamed,
)
from tests.integration.reference import Reference
from tests.proxy.harness import VERSION, Proxy, a_proxy

from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.records import Generation

__all__ = ["reference"]

pytestmark = pytest.mark.integration

NAMED = {"type": "function", "function": {"name": "wait"}}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "door", "schema": SCHEMA, "strict": True}}
UNTIL_STOPPED = {"ignore_eos": True, "max_tokens": 400}

CALLING = r'<tool_call>\n\{"name": "wait", "arguments": \{"long": (true|false)\}\}\n</tool_call>'
"""What is asked for, so that the model writes calls and no text. vLLM knows the tools, and lets it write any
of them, several too, until the tokens are all.
"""

CHAT: dict[str, Json] = {
    "plain": {},
    "temperature 0.7": {"temperature": 0.7},
    "stop string": {"stop": ["e", " th"], **UNTIL_STOPPED},
    "two choices": {"n": 2},
    "two choices that stop": {"n": 2, "stop": ["a"], **UNTIL_STOPPED},
    "json schema": {"response_format": JSON_FORMAT, "max_tokens": 300},
    "tools, unused": {"tools": TOOLS, "tool_choice": "none"},
    "a tool is required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 400},
    "a tool is named": {"tools": TOOLS, "tool_choice": NAMED, "max_tokens": 400},
    "a tool is chosen": {
        "tools": TOOLS,
        "tool_choice": "auto",
        "structured_outputs": {"regex": CALLING},
        "max_tokens": 400,
        "seed": 3,
    },
    "two choices with tools": {"tools": TOOLS, "tool_choice": "required", "n": 2, "max_tokens": 400},
}
COMPLETIONS: dict[str, Json] = {
    "plain": {},
    "temperature 0.7": {"temperature": 0.7},
    "stop string": {"stop": ["e", " th"], **UNTIL_STOPPED},
    "two choices": {"n": 2},
    "two prompts": {"prompt": ["the water", "who"]},
    "token ids": {"prompt": [1, 2, 3]},
    "json schema": {"response_format": JSON_FORMAT, "max_tokens": 300},
}


def check_recorded(proxy: Proxy, answer: Answer) -> list[Generation]:
    """Each choice's span has what vLLM told the client of it, and can be trained on."""
    spans = proxy.spans()
    assert len(spans) == len(answer.choices)
    for span, (index, heard) in zip(spans, sorted(answer.choices.items()), strict=True):
        made = made_by(span)
        assert made.choice_index == index
        assert made.prompt_token_ids == tuple(heard.prompt)
        assert made.response_token_ids == tuple(heard.ids)
        assert made.response_logprobs == tuple(heard.logprobs)
        assert made.completion_tokens == len(heard.ids) > 0
        assert made.finish_reason == heard.finish_reason
        assert made.why_untrainable() is None
        assert (made.resource_name, made.resource_version) == VERSION
    assert sum(len(made_by(span).response_token_ids) for span in spans) == answer.num_tokens
    return [made_by(span) for span in spans]


def check_text(reference: Reference, heard: Heard, body: Json) -> None:
    """The client's text is that of the ids, but for what it never gets: a stop string, a call's markup."""
    written = reference.text(heard.ids)
    if heard.calls:
        calls = [json.loads(each) for each in re.findall("<tool_call>(.*?)</tool_call>", written, re.DOTALL)]
        said = list(heard.calls.values())
        if heard.finish_reason == "length" and len(said) > len(calls):
            # The last was cut in the middle.
            name, words = said.pop()
            cut = written.rpartition("<tool_call>")[2]
            assert f'"name": "{name}"' in cut
            assert words in cut
        assert calls == [{"name": name, "arguments": json.loads(words)} for name, words in said]
    elif isinstance(heard.stop_reason, str):
        assert heard.stop_reason in body["stop"]
        assert written.startswith(heard.text + heard.stop_reason)
    else:
        assert written == heard.text


async def check(vllm: VllmServer, reference: Reference, path: str, body: Json) -> Answer:
    async with a_proxy(vllm.endpoint) as proxy:
        response = await proxy.client.post(f"{proxy.open()}{path}", json=body)
        answer = answer_of(response)
        recorded = check_recorded(proxy, answer)
    assert [made.prompt_token_ids for made in recorded] == prompts_of(reference, body)
    for made, (_, heard) in zip(recorded, sorted(answer.choices.items()), strict=True):
        check_logprobs(reference, made, body)
        check_text(reference, heard, body)
    return answer


@WHOLE_OR_STREAM
@pytest.mark.parametrize("case", CHAT)
async def test_chat(vllm: VllmServer, reference: Reference, case: str, is_stream: bool) -> None:  # noqa: FBT001
    body = {"model": vllm.model_name, "messages": MESSAGES, **SAID, **CHAT[case], **streamed(is_stream)}
    answer = await check(vllm, reference, "/v1/chat/completions", body)
    if body.get("tool_choice", "none") != "none":
        assert all(heard.calls for heard in answer.choices.values())
    if "stop" in body:
        assert all(heard.stop_reason in body["stop"] for heard in answer.choices.values())


@WHOLE_OR_STREAM
@pytest.mark.parametrize("case", COMPLETIONS)
async def test_completions(
    vllm: VllmServer,
    reference: Reference,
    case: str,
    is_stream: bool,  # noqa: FBT001
) -> None:
    given: Json = {"model": vllm.model_name, "prompt": "what is the water?", **SAID, "logprobs": 0}
    await check(vllm, reference, "/v1/completions", {**given, **COMPLETIONS[case], **streamed(is_stream)})
