"""The agent of the training demo: it reads notes and opens boxes, and a model says which.

An agent as anybody would write it: it knows its base URL, and nothing of headrace but the decorator.
"""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from headrace.cli.demo.boxes import NUM_CALLS, BoxesTask, examples, note_in, right_box
from headrace.streams.runner import agent, current_attempt, emit_reward

_TIMEOUT_S = 120.0
_clients: "WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]" = WeakKeyDictionary()


@agent
async def open_boxes(task: BoxesTask, _resources: object) -> float:
    """How many of the boxes were right; and of each call, whether its box was."""
    messages: list[dict[str, Any]] = []
    for shown, answer in examples(task):
        messages += [{"role": "user", "content": shown}, {"role": "assistant", "content": answer}]
    letter, num_right = task["letter"], 0
    for _ in range(NUM_CALLS):
        messages.append({"role": "user", "content": letter})
        said = await _ask(messages)
        messages.append({"role": "assistant", "content": said})
        is_right = said == right_box(letter)
        emit_reward(float(is_right), name="box")
        num_right += is_right
        letter = note_in(said, task)
    return num_right / NUM_CALLS


async def _ask(messages: list[dict[str, Any]]) -> str:
    attempt = current_attempt()
    response = await _client().post(
        f"{attempt.base_url}/chat/completions",
        headers={"authorization": f"Bearer {attempt.api_key}"},
        json={"model": "policy", "messages": messages, "max_tokens": 2, "temperature": 1.0},
    )
    response.raise_for_status()
    content: str | None = response.json()["choices"][0]["message"]["content"]
    return content or ""


def _client() -> httpx.AsyncClient:
    """One for all attempts of a loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        _clients[loop] = httpx.AsyncClient(timeout=_TIMEOUT_S, limits=limits, trust_env=False)
    return _clients[loop]
