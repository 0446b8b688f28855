"""OpenAI's and Anthropic's own clients on a real model: tools over several turns, and answers of a form."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict
from tests.integration.model_calls import SCHEMA, TOOLS, made_by
from tests.proxy.harness import Proxy, a_proxy

from headrace.cli.stack.vllm import VllmServer
from headrace.schemas.records import Generation

pytestmark = pytest.mark.integration

OPEN: dict[str, Any] = {"name": "open_door", "description": "Open one of the doors.", "strict": True}
ASKED: Any = [{"role": "user", "content": "which door?"}]


class Door(BaseModel):
    model_config = ConfigDict(extra="forbid")

    door: Literal["red", "green"]
    is_open: bool


def openai_client(proxy: Proxy, path: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{proxy.url}{path}/v1", api_key=proxy.token, max_retries=0)


def trainable(proxy: Proxy, number: int) -> Sequence[Generation]:
    """So many calls were recorded, each fit to train on, and each prompt is longer than the last."""
    found = [made_by(span) for span in proxy.spans()]
    assert [made.why_untrainable() for made in found] == [None] * number
    lengths = [len(made.prompt_token_ids) for made in found]
    assert lengths == sorted(set(lengths))
    return found


async def test_chat_with_tools_in_two_turns(vllm: VllmServer) -> None:
    async with a_proxy(vllm.endpoint) as proxy:
        path = proxy.open()
        given: Any = {"model": vllm.model_name, "tools": TOOLS[:1], "tool_choice": "required"}
        given |= {"max_tokens": 400, "parallel_tool_calls": False}
        messages = list(ASKED)
        async with openai_client(proxy, path) as client:
            for _ in range(2):
                async with client.chat.completions.stream(messages=messages, **given) as stream:
                    final = await stream.get_final_completion()
                (choice,) = final.choices
                assert choice.finish_reason == "tool_calls"
                (call,) = choice.message.tool_calls or []
                Door.model_validate_json(call.function.arguments)
                messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "nothing"})
        trainable(proxy, 2)
        assert await proxy.close(path) == {"last_sequence_id": 2, "failure": None}


async def test_answers_of_a_form(vllm: VllmServer) -> None:
    async with a_proxy(vllm.endpoint) as proxy, openai_client(proxy, proxy.open()) as client:
        parsed = await client.chat.completions.parse(
            model=vllm.model_name, messages=ASKED, response_format=Door, max_tokens=400
        )
        assert isinstance(parsed.choices[0].message.parsed, Door)
        response = await client.responses.parse(
            model=vllm.model_name,
            input="which door, and is it open?",
            text_format=Door,
            max_output_tokens=400,
        )
        assert isinstance(response.output_parsed, Door)
        assert [model.id async for model in client.models.list()] == [vllm.model_name]
        trainable(proxy, 2)


async def test_responses_with_tools_in_two_turns(vllm: VllmServer) -> None:
    """The second turn names the first response, and sends nothing but the tool's result."""
    tool = {"type": "function", **OPEN, "parameters": SCHEMA}
    given: Any = {"model": vllm.model_name, "tools": [tool], "tool_choice": "required"}
    given |= {"max_output_tokens": 400, "parallel_tool_calls": False, "instructions": "open doors"}
    async with a_proxy(vllm.endpoint) as proxy, openai_client(proxy, proxy.open()) as client:
        first = await client.responses.create(input="which door?", **given)
        (call,) = [item for item in first.output if item.type == "function_call"]
        Door.model_validate_json(call.arguments)
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}
        async with client.responses.stream(input=[result], previous_response_id=first.id, **given) as stream:
            second = await stream.get_final_response()
        assert [item.type for item in second.output] == ["function_call"]
        one, two = trainable(proxy, 2)
        assert two.prompt_token_ids[: len(one.prompt_token_ids)] == one.prompt_token_ids


async def test_messages_with_tools_in_two_turns(vllm: VllmServer) -> None:
    given: Any = {"model": vllm.model_name, "max_tokens": 400, "system": "open doors"}
    given |= {"tools": [{**OPEN, "input_schema": SCHEMA}]}
    choice: Any = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    async with a_proxy(vllm.endpoint) as proxy:
        path = proxy.open()
        options: Any = {"base_url": f"{proxy.url}{path}", "api_key": proxy.token, "max_retries": 0}
        async with AsyncAnthropic(**options) as client:
            first = await client.messages.create(messages=ASKED, **given, **choice)
            assert first.stop_reason == "tool_use"
            (use,) = [block for block in first.content if block.type == "tool_use"]
            Door.model_validate(use.input)
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "nothing"}
            said: Any = [
                *ASKED,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            async with client.messages.stream(messages=said, **given, **choice) as stream:
                second = await stream.get_final_message()
            assert second.stop_reason == "tool_use"
            counting = {name: value for name, value in given.items() if name != "max_tokens"}
            counted = await client.messages.count_tokens(messages=said, **counting)
        one, two = trainable(proxy, 2)
        assert counted.input_tokens == len(two.prompt_token_ids)
        assert second.usage.input_tokens <= len(two.prompt_token_ids)
        assert two.prompt_token_ids[: len(one.prompt_token_ids)] == one.prompt_token_ids
