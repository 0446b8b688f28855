"""The demo's agent: plays its script as untidily as real programs do, and the log sets it right.

Runs as `headrace runner headrace.cli.demo.agent:play`.
"""

import asyncio
import atexit
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from headrace.cli.demo.script import Step, script
from headrace.schemas.ids import uuid7
from headrace.schemas.records import Span, now
from headrace.streams.client.publisher import Publisher
from headrace.streams.runner import agent, current_attempt
from headrace.streams.settings import KafkaSettings

if TYPE_CHECKING:
    from headrace.streams.runner.attempt import Attempt


class ToolError(Exception):
    """What a scripted failure raises."""


@agent
async def play(task: Mapping[str, int], _resources: object) -> float | None:
    """Take the ids in order, publish out of order, twice, not at all; then succeed, fail or hang."""
    attempt = current_attempt()
    plan = script(task["seed"], task["number"], attempt.number)
    sequence_ids = [attempt.take() for _ in plan.steps]
    for at in plan.order:
        _perform(attempt, sequence_ids[at], plan.steps[at])
    if plan.kind == "fails":
        raise ToolError("the calculator does not answer")
    if plan.kind == "hangs":
        await asyncio.Event().wait()
    return plan.outcome


def _perform(attempt: "Attempt", sequence_id: int, step: Step) -> None:
    if step.kind == "unused":
        return  # the attempt's end accounts for it
    if step.kind == "lost":
        attempt.lose(sequence_id)
        return
    span = _span(attempt, sequence_id, step)
    attempt.put(sequence_id, lambda _: span)
    if step.is_doubled:
        _second_publisher().publish(span)


def _span(attempt: "Attempt", sequence_id: int, step: Step) -> Span:
    time = now()
    is_call = step.generation is not None
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=sequence_id,
        kind="client" if is_call else "internal",
        trace_id=attempt.trace_id,
        span_id=uuid7().replace("-", "")[-16:],
        name="chat tiny-policy" if is_call else "execute_tool calculator",
        start_time=time,
        end_time=time,
        status="ok",
        attributes={"gen_ai.operation.name": "chat"} if is_call else {},
        generation=step.generation,
    )


@cache
def _second_publisher() -> Publisher:
    """What is published twice comes by another way."""
    publisher = Publisher(KafkaSettings())
    atexit.register(publisher.flush)
    return publisher
