"""The agent of the rollout tests: a model call first, and after so many seconds what its task says."""

import asyncio
import math
from typing import Any

from headrace.schemas.records import Generation
from headrace.streams.runner import agent, emit_span

CALL = Generation(
    agent="solver",
    model="tiny",
    prompt_token_ids=(1, 2),
    response_token_ids=(3,),
    response_logprobs=(-0.5,),
    completion_tokens=1,
)


@agent
async def play(task: Any, _resources: object) -> float:
    emit_span("chat", generation=CALL)
    await asyncio.sleep(task["seconds"])
    match task["do"]:
        case "hang":
            await asyncio.Event().wait()
        case "raise":
            raise ValueError("as the task says")
        case "nan":
            return math.nan
    return 1.0
