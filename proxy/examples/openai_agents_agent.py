"""OpenAI's Agents SDK, on its default API, Responses: an agent that opens doors until it finds the prize."""

import os
from typing import Any, Literal

from agents import (
    Agent,
    FunctionToolResult,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from headrace.streams.runner import agent, current_attempt

MODEL = os.environ.get("MODEL", "policy")
set_tracing_disabled(True)  # traces would go to OpenAI


@agent
async def solve(task: dict[str, Any], _resources: object) -> float:
    """A task is `{"prize": "green", "max_turns": 3}`."""

    @function_tool
    def open_door(door: Literal["red", "green", "blue"]) -> str:
        """Open one of the doors."""
        return "the prize" if door == task["prize"] else "nothing"

    attempt = current_attempt()
    async with AsyncOpenAI(base_url=attempt.base_url, api_key=attempt.api_key) as client:
        opener = Agent(
            name="opener",
            instructions="find the prize behind the doors",
            model=OpenAIResponsesModel(MODEL, client),
            model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=400),
            tools=[open_door],
            tool_use_behavior=until_found,
            reset_tool_choice=False,
        )
        try:
            await Runner.run(opener, "where is it?", max_turns=task["max_turns"])
        except MaxTurnsExceeded:
            return 0.0
    return 1.0


def until_found(_: RunContextWrapper[Any], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    return ToolsToFinalOutputResult(is_final_output=results[-1].output == "the prize")
