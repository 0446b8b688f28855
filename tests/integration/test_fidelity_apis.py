"""G6 on real vLLM, beyond single chats: the other APIs, calls that can't be trained on, and several turns."""

import json
import re

import httpx
import pytest
from tests.integration.heard import answer_of
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
from tests.integration.reference import TOLERANCE, Reference
from tests.proxy.harness import a_proxy

from headrace.cli.stack.vllm import VllmServer

__all__ = ["reference"]

pytestmark = pytest.mark.integration

STRICT = {"name": "open_door", "description": "Open one of the doors.", "strict": True}
OTHERS: dict[str, tuple[str, Json, Json]] = {
    "responses": (
        "/v1/responses",
        {"instructions": "be brief", "input": "who", "max_output_tokens": 24, "seed": 3},
        {"max_tokens": 24},
    ),
    "responses with a tool": (
        "/v1/responses",
        {
            "instructions": "be brief",
            "input": [{"role": "user", "content": "who"}],
            "tools": [{"type": "function", **STRICT, "parameters": SCHEMA}],
            "tool_choice": "required",
            "max_output_tokens": 400,
            "temperature": 0.7,
            "seed": 4,
        },
        {"max_tokens": 400, "tools": TOOLS[:1], "tool_choice": "required"},
    ),
    "messages": (
        "/v1/messages",
        {
            "system": "be brief",
            "messages": [{"role": "user", "content": "who"}],
            "max_tokens": 24,
            "temperature": 0.7,
            "seed": 5,
        },
        {"max_tokens": 24},
    ),
    "messages with a tool": (
        "/v1/messages",
        {
            "system": "be brief",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "who"}]}],
            "tools": [{**STRICT, "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
            "max_tokens": 400,
            "seed": 6,
        },
        {"max_tokens": 400, "tools": TOOLS[:1], "tool_choice": "required"},
    ),
}


def said_in(response: httpx.Response) -> str:
    """All words of an answer of Responses or Messages: its text, or the arguments of its calls."""
    assert response.status_code == 200, response.text
    if "text/event-stream" not in response.headers["content-type"]:
        return words_of(response.json())
    events = [json.loads(each) for each in re.findall("^data: (.*)$", response.text, re.MULTILINE)]
    assert not any(event["type"] in ("error", "response.failed") for event in events)
    if "response" in events[-1]:
        return words_of(events[-1]["response"])
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    return "".join(delta.get("text") or delta.get("partial_json") or "" for delta in deltas)


def words_of(answer: Json) -> str:
    items = answer.get("output") or answer["content"]
    parts = [part for item in items for part in item.get("content") or [item]]
    return "".join(part.get("text") or part.get("arguments") or json.dumps(part["input"]) for part in parts)


@WHOLE_OR_STREAM
@pytest.mark.parametrize("case", OTHERS)
async def test_other_apis_are_the_same_call(
    vllm: VllmServer,
    reference: Reference,
    case: str,
    is_stream: bool,  # noqa: FBT001
) -> None:
    """The same seed gives the same tokens as a chat completion asked of vLLM itself."""
    path, body, as_chat = OTHERS[case]
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who"}]
    sampling: Json = {name: body[name] for name in ("temperature", "seed") if name in body}
    chat: Json = {"model": vllm.model_name, "messages": messages, **SAID, **as_chat, **sampling}
    async with a_proxy(vllm.endpoint) as proxy:
        asked = {"model": vllm.model_name, **body, "stream": is_stream}
        words = said_in(await proxy.client.post(f"{proxy.open()}{path}", json=asked))
        (span,) = proxy.spans()
        direct = answer_of(await proxy.client.post(f"{vllm.endpoint}/v1/chat/completions", json=chat))
    made, heard = made_by(span), direct.choices[0]
    assert made.why_untrainable() is None
    assert made.prompt_token_ids == tuple(heard.prompt) == prompts_of(reference, chat)[0]
    assert made.response_token_ids == tuple(heard.ids)
    assert made.response_logprobs == pytest.approx(heard.logprobs, abs=TOLERANCE)
    check_logprobs(reference, made, chat)
    if heard.calls:
        assert json.loads(words) == json.loads(heard.calls[0][1])
    else:
        assert words == heard.text == reference.text(made.response_token_ids)


# --- what can't be trained on ------------------------------------------------------------------------


@WHOLE_OR_STREAM
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
async def test_c3_a_prompt_over_the_limit(vllm: VllmServer, path: str, is_stream: bool) -> None:  # noqa: FBT001
    """The client gets the engine's words, in its API's form; the call is kept, and the attempt goes on."""
    words = "who " * 3000
    messages = [{"role": "user", "content": words}]
    bodies: dict[str, Json] = {
        "chat/completions": {"messages": messages},
        "completions": {"prompt": words},
        "responses": {"input": words},
        "messages": {"messages": messages, "max_tokens": 4},
    }
    body = bodies[path] | {"model": vllm.model_name, "stream": is_stream}
    async with a_proxy(vllm.endpoint) as proxy:
        at = proxy.open()
        response = await proxy.client.post(f"{at}/v1/{path}", json=body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert "maximum context length" in error["message"]
        assert (response.json().get("type") == "error") == (path == "messages")
        (span,) = proxy.spans()
        made = made_by(span)
        assert made.why_untrainable() == "upstream_error_400"
        assert (made.response_token_ids, made.response_logprobs) == ((), ())
        assert "maximum context length" in made.response
        await proxy.chat(at, model=vllm.model_name)
        assert made_by(proxy.spans()[1]).why_untrainable() is None
        assert await proxy.close(at) == {"last_sequence_id": 2, "failure": None}


async def test_an_echoed_prompt_is_kept_untrainable(vllm: VllmServer) -> None:
    """Its logprobs come first, and begin with none."""
    body = {"model": vllm.model_name, "prompt": "who", "max_tokens": 4, "echo": True, "logprobs": 0}
    async with a_proxy(vllm.endpoint) as proxy:
        assert (await proxy.client.post(f"{proxy.open()}/v1/completions", json=body)).status_code == 200
        assert made_by(proxy.spans()[0]).why_untrainable() == "logprobs_invalid"


# --- several turns -----------------------------------------------------------------------------------

TURNS = [
    pytest.param(["Q", "Z"], True, id="a text of the tokens it was written in"),
    pytest.param(["\u0120", "t", "h", "e"], False, id="a text that has other tokens"),
]


@WHOLE_OR_STREAM
@pytest.mark.parametrize(("alphabet", "extends"), TURNS)
async def test_c7_the_next_turn(
    vllm: VllmServer,
    reference: Reference,
    alphabet: list[str],
    extends: bool,  # noqa: FBT001
    is_stream: bool,  # noqa: FBT001
) -> None:
    """The second prompt is the engine's own, whether or not it extends the first call's ids."""
    end = reference.tokenizer.eos_token_id
    letters = reference.tokenizer.convert_tokens_to_ids(alphabet)
    sampling = {"max_tokens": 200, "min_tokens": 16, "allowed_token_ids": [*letters, end], "seed": 1}
    async with a_proxy(vllm.endpoint) as proxy:
        path = proxy.open()
        body = {"model": vllm.model_name, **SAID, **sampling, **streamed(is_stream), "messages": MESSAGES}
        first = answer_of(await proxy.client.post(f"{path}/v1/chat/completions", json=body)).choices[0]
        assert first.ids[-1] == end
        turns = [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and now?"}]
        body["messages"] = [*MESSAGES, *turns]
        second = answer_of(await proxy.client.post(f"{path}/v1/chat/completions", json=body)).choices[0]
        one, two = map(made_by, proxy.spans())
    assert one.response_token_ids == tuple(first.ids)
    assert two.prompt_token_ids == tuple(second.prompt) == reference.prompt_ids(body["messages"])
    whole = one.prompt_token_ids + one.response_token_ids
    assert (two.prompt_token_ids[: len(whole)] == whole) == extends
    assert reference.text(two.prompt_token_ids).startswith(reference.text(whole))
