"""An agent that does what its task says, sync and async: run by the tests' runners."""

import asyncio
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from opentelemetry import trace

from headrace.schemas.records import Generation
from headrace.streams.runner import agent, current_attempt, emit_reward, emit_span, span
from headrace.streams.runner.agent import Resources

tracer = trace.get_tracer("scripted")

CALL = Generation(
    agent="solver",
    model="tiny",
    prompt_token_ids=(1, 2),
    response_token_ids=(3,),
    response_logprobs=(-0.5,),
    completion_tokens=1,
)


def act(task: Any, resources: Resources) -> Any:  # noqa: C901, PLR0911, PLR0912
    """What needs no waiting."""
    match task:
        case {"do": "return", "value": value}:
            return value
        case {"do": "nan"}:
            return math.nan
        case {"do": "raise"}:
            raise ValueError("as the task says")
        case {"do": "exit"}:
            sys.exit(3)
        case {"do": "work"}:
            emit_span("chat", generation=CALL)
            with span("tool"):
                emit_reward(0.25, "style", about=1)
            return 1.0
        case {"do": "call", "num_calls": num_calls}:
            for _ in range(num_calls):
                call_model()
                with span("tool"):
                    emit_reward(0.25, "style", about=call_model())
            return 1.0
        case {"do": "emit"}:
            emit_span("chat", generation=CALL)
            emit_reward(0.75)
            return None
        case {"do": "nan by name"}:
            emit_span("chat", generation=CALL)
            emit_reward(math.nan, "style")
            return 1.0
        case {"do": "catch"}:
            try:
                emit_span("chat", generation="no")
            except ValueError:
                emit_span("chat", generation=CALL)
            return 1.0
        case {"do": "otel"}:
            with tracer.start_as_current_span("invoke_agent", attributes={"gen_ai.agent.name": "solver"}):
                time.sleep(0)
                with tracer.start_as_current_span("chat", attributes=task["attributes"]):
                    time.sleep(0)
            return 1.0
        case {"do": "resource"}:
            return float(resources["hint"].version)
        case {"do": "late"}:
            # Emits from a thread that outlives the attempt.
            attempt, ended = current_attempt(), Path(task["file"])

            def emit_later() -> None:
                while not attempt.is_closed:
                    time.sleep(0.01)
                try:
                    attempt.emit_reward(-1.0)
                except Exception as error:  # noqa: BLE001  its name is what the test looks at
                    ended.write_text(type(error).__name__)

            threading.Thread(target=emit_later, daemon=True).start()
            return 1.0
    raise AssertionError(f"unknown: {task}")


def call_model() -> int:
    """Through the fake proxy, which answers with the call's sequence id."""
    attempt = current_attempt()
    headers = {"authorization": f"Bearer {attempt.api_key}"}
    answer = httpx.post(f"{attempt.base_url}/chat/completions", headers=headers).raise_for_status()
    sequence_id: int = answer.json()["sequence_id"]
    return sequence_id


def begin(task: Any) -> None:
    """Tell the test that this runs."""
    if "begun" in task:
        with Path(task["begun"]).open("a") as file:
            file.write(f"{os.getpid()} {current_attempt().attempt_id}\n")


@agent
def sync(task: Any, resources: Resources) -> Any:
    begin(task)
    if task["do"] in {"hang", "block"}:
        while True:
            time.sleep(0.05)
    if task["do"] == "wait":
        while not Path(task["file"]).exists():
            time.sleep(0.01)
        return 1.0
    if task["do"] == "sleep":
        time.sleep(task["seconds"])
        return 1.0
    return act(task, resources)


@agent
async def asynchronous(task: Any, resources: Resources) -> Any:
    begin(task)
    if task["do"] == "hang":
        await asyncio.Event().wait()
    if task["do"] == "stubborn":
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
    if task["do"] == "block":
        time.sleep(3600)  # noqa: ASYNC251  what it must not do
    if task["do"] == "wait":
        while not Path(task["file"]).exists():  # noqa: ASYNC110, ASYNC240  the test is elsewhere
            await asyncio.sleep(0.01)
        return 1.0
    if task["do"] == "sleep":
        await asyncio.sleep(task["seconds"])
        return 1.0
    return act(task, resources)
