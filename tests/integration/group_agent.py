"""The agent of the batch tests: what its task says of the samples of a group."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from headrace.schemas.records import Generation
from headrace.streams.runner import agent, current_attempt, emit_span

_seen: Counter[str] = Counter()


@agent
async def sample(task: Any, resources: Any) -> float:
    attempt = current_attempt()
    emit_span("chat", generation=call(resources["policy"].version))
    if task["do"] == "fail once" and attempt.record.attempt == 1:
        raise ValueError("as the task says")
    if "until" in task:
        # A pipe: whoever reads it waits for its writer.
        await asyncio.to_thread(Path(task["until"]).read_bytes)
    group = attempt.record.group_id
    number = _seen[group]
    _seen[group] += 1
    if task["do"] == "hang" and number == 0:
        await asyncio.Event().wait()
    return 1.0 if task["do"] == "alike" else float(number % 2)


def call(version: int) -> Generation:
    return Generation(
        model="tiny",
        prompt_token_ids=(1, 2),
        response_token_ids=(3,),
        response_logprobs=(-0.5,),
        completion_tokens=1,
        resource_name="policy",
        resource_version=version,
    )
