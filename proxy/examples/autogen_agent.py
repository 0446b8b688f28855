"""AutoGen: an assistant that opens doors, one a turn, and looks for the prize."""

import os
from typing import Any, Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from headrace.streams.runner import agent, current_attempt

MODEL = os.environ.get("MODEL", "policy")
INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown"
)

# The assistant itself always says `auto`.
MUST_CALL: dict[str, Any] = {"extra_body": {"tool_choice": "required"}}


@agent
async def solve(task: dict[str, Any], _resources: object) -> float:
    """A task is `{"prize": "green", "max_turns": 3}`."""
    opened: list[str] = []

    def open_door(door: Literal["red", "green", "blue"]) -> str:
        opened.append(door)
        return "the prize" if door == task["prize"] else "nothing"

    attempt = current_attempt()
    client = OpenAIChatCompletionClient(
        model=MODEL,
        model_info=INFO,
        base_url=attempt.base_url or "",
        api_key=attempt.api_key or "",
        max_tokens=400,
        parallel_tool_calls=False,
        **MUST_CALL,
    )
    opener = AssistantAgent(
        "opener",
        client,
        tools=[FunctionTool(open_door, "Open one of the doors.", strict=True)],
        system_message="find the prize behind the doors",
        max_tool_iterations=task["max_turns"],
    )
    await opener.run(task="where is it?")
    await client.close()
    return float(task["prize"] in opened)
