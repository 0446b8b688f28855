"""Several turns, as the libraries of others hold them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel
from tests.proxy.responses.official import WEATHER, Proxy, call, completion

from headrace.proxy.dialect import Json
from headrace.proxy.responses import ResponseStore

LOOK = completion({"reasoning": "Look.", "content": "\n\n", "tool_calls": [call()]}, "tool_calls")
SUNNY = completion({"content": "Sunny in Oslo."})
ASKED: Json = {"role": "user", "content": "Weather in Oslo?"}
LOOKED: Json = {
    "role": "assistant",
    "reasoning_content": "Look.",
    "content": "\n\n",
    "tool_calls": [call()],
}
FOUND: Json = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
BRIEF: Json = {"role": "system", "content": "Be brief."}


@pytest.fixture(autouse=True)
def _no_tracing() -> Iterator[None]:
    set_tracing_disabled(disabled=True)
    yield
    set_tracing_disabled(disabled=False)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("by_id", [False, True], ids=["items", "previous_response_id"])
def test_the_agents_sdk_calls_a_tool(is_stream: bool, by_id: bool) -> None:  # noqa: FBT001
    proxy = Proxy(LOOK, SUNNY)

    @function_tool
    def weather(city: str) -> str:
        assert city == "Oslo"
        return "sunny"

    async def main() -> str:
        async with proxy.client() as client:
            model = OpenAIResponsesModel("m", client)
            agent = Agent(name="a", instructions="Be brief.", tools=[weather], model=model)
            question, config = "Weather in Oslo?", RunConfig(tracing_disabled=True)
            if not is_stream:
                whole = await Runner.run(agent, question, run_config=config, auto_previous_response_id=by_id)
                return whole.final_output_as(str)
            streaming = Runner.run_streamed(
                agent, question, run_config=config, auto_previous_response_id=by_id
            )
            async for _ in streaming.stream_events():
                pass
            return streaming.final_output_as(str)

    assert asyncio.run(main()) == "Sunny in Oslo."
    assert ("previous_response_id" in proxy.received[1]) == by_id
    first, second = (request["messages"] for request in proxy.requests)
    assert first == [BRIEF, ASKED]
    assert second == [BRIEF, ASKED, LOOKED, FOUND]
    assert proxy.requests[0]["tools"][0]["function"]["name"] == "weather"


def test_instructions_are_not_carried_over_and_the_rest_is() -> None:
    proxy = Proxy(LOOK, SUNNY, SUNNY)

    async def main() -> None:
        async with proxy.client() as client:
            first = await client.responses.create(
                model="m",
                input="Weather in Oslo?",
                instructions="Be brief.",
                tools=[WEATHER],  # type: ignore[list-item]
            )
            second = await client.responses.create(
                model="m",
                previous_response_id=first.id,
                input=[{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}],
            )
            await client.responses.create(model="m", previous_response_id=second.id, input="Sure?")

    asyncio.run(main())
    assert proxy.requests[1]["messages"] == [ASKED, LOOKED, FOUND]
    assert proxy.requests[2]["messages"] == [
        ASKED,
        LOOKED,
        FOUND,
        {"role": "assistant", "content": "Sunny in Oslo."},
        {"role": "user", "content": "Sure?"},
    ]


def test_items_by_reference() -> None:
    proxy = Proxy(LOOK, SUNNY)

    async def main() -> None:
        async with proxy.client() as client:
            first = await client.responses.create(model="m", input="Weather in Oslo?")
            references: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
            asked: Any = ASKED
            found: Any = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
            await client.responses.create(model="m", input=[asked, *references, found])

    asyncio.run(main())
    assert proxy.requests[1]["messages"] == [ASKED, LOOKED, FOUND]


def test_reasoning_sent_back_without_its_text_has_it_again() -> None:
    proxy = Proxy(LOOK, SUNNY)

    async def main() -> None:
        async with proxy.client() as client:
            first = await client.responses.create(model="m", input="Weather in Oslo?")
            reasoning, *others = [item.to_dict() for item in first.output]
            reasoning |= {"content": None, "summary": []}
            found = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
            items: list[Any] = [ASKED, reasoning, *others, found]
            await client.responses.create(model="m", input=items)

    asyncio.run(main())
    assert proxy.requests[1]["messages"] == [ASKED, LOOKED, FOUND]


@pytest.mark.parametrize(
    ("is_stored", "store"),
    [(False, ResponseStore()), (True, ResponseStore(max_responses=0))],
    ids=["not stored", "no room"],
)
def test_a_response_that_is_not_kept_is_refused(is_stored: bool, store: ResponseStore) -> None:  # noqa: FBT001
    proxy = Proxy(SUNNY, store=store)

    async def main() -> None:
        async with proxy.client() as client:
            first = await client.responses.create(model="m", input="x", store=is_stored)
            await client.responses.create(model="m", input="y", previous_response_id=first.id)

    with pytest.raises(openai.BadRequestError, match="no response of this id is kept") as raised:
        asyncio.run(main())
    assert raised.value.param == "previous_response_id"


@pytest.mark.parametrize("item_id", ["msg_1", "", None, 7], ids=["unknown", "empty", "none", "number"])
def test_an_unknown_reference_is_refused(item_id: object) -> None:
    proxy = Proxy()

    async def main() -> None:
        async with proxy.client() as client:
            given: list[Any] = [{"type": "item_reference", "id": item_id}]
            await client.responses.create(model="m", input=given)

    with pytest.raises(openai.BadRequestError, match="no item of this id is kept") as raised:
        asyncio.run(main())
    assert raised.value.param == "input[0].id"


def test_another_attempts_responses_are_unknown() -> None:
    theirs, ours = Proxy(SUNNY), Proxy()

    async def main() -> None:
        async with theirs.client() as client, ours.client() as other:
            first = await client.responses.create(model="m", input="x")
            await other.responses.create(model="m", input="y", previous_response_id=first.id)

    with pytest.raises(openai.BadRequestError, match="no response of this id"):
        asyncio.run(main())
