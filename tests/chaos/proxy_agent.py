"""The agent of a proxy's chaos test: so many calls, one after the other.

Some make nothing of an error, and claim a reward all the same.
"""

import asyncio
from typing import Any

import httpx

from headrace.streams.runner import agent, current_attempt


@agent
async def play(task: Any, _resources: object) -> float:
    attempt = current_attempt()
    headers = {"authorization": f"Bearer {attempt.api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as client:
        for number in range(task["num_calls"]):
            body = {
                "model": "fake",
                "messages": [{"role": "user", "content": f"PLANTED-{number}-"}],
                "max_tokens": 6,
                "stream": number % 2 == 1,
            }
            try:
                answer = await client.post(f"{attempt.base_url}/chat/completions", json=body)
                answer.raise_for_status()
            except httpx.HTTPError:
                if not task["takes_errors"]:
                    raise
            # So that kills find attempts between two calls too.
            await asyncio.sleep(task["pause_s"])
    return 1.0
