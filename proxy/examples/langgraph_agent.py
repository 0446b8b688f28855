"""LangGraph: a graph that opens doors, one a turn, until it finds the prize or its turns are over."""

import os
from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from headrace.streams.runner import agent, current_attempt

MODEL = os.environ.get("MODEL", "policy")


@agent
async def solve(task: dict[str, Any], _resources: object) -> float:
    """A task is `{"prize": "green", "max_turns": 3}`."""

    @tool
    def open_door(door: Literal["red", "green", "blue"]) -> str:
        """Open one of the doors."""
        return "the prize" if door == task["prize"] else "nothing"

    attempt = current_attempt()
    model = ChatOpenAI(model=MODEL, base_url=attempt.base_url, api_key=attempt.api_key, max_tokens=400)
    opener = model.bind_tools([open_door], tool_choice="required", strict=True, parallel_tool_calls=False)

    async def decide(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await opener.ainvoke(state["messages"])]}

    def go_on(state: MessagesState) -> str:
        num_turns = sum(message.type == "ai" for message in state["messages"])
        return END if is_found(state["messages"]) or num_turns == task["max_turns"] else "decide"

    graph = StateGraph(MessagesState)
    graph.add_node("decide", decide)
    graph.add_node("open", ToolNode([open_door]))
    graph.add_edge(START, "decide")
    graph.add_edge("decide", "open")
    graph.add_conditional_edges("open", go_on)
    question = HumanMessage("find the prize behind the doors")
    state = await graph.compile().ainvoke({"messages": [question]})
    return float(is_found(state["messages"]))


def is_found(messages: Sequence[AnyMessage]) -> bool:
    return messages[-1].content == "the prize"
