"""Calls of a model by every API that the proxy speaks, and what their clients see of the answers."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from tests.proxy.fake_vllm import FAULTS

Api = Literal["chat/completions", "completions", "messages", "responses"]
APIS: tuple[Api, ...] = ("chat/completions", "completions", "messages", "responses")
PLANTED = "PLANTED"
"""In every prompt, and for no log."""

_HANG = ("hangs", "stalls")


@dataclass
class Call:
    """What is asked, and what came of it."""

    number: int
    attempt_id: str
    api: Api
    num_choices: int
    is_stream: bool
    fault: str
    after: int
    leaves_after_s: float | None
    """The client's patience."""
    status: int | None = None
    """None: it left before, or the connection broke."""
    retry_after: str | None = None
    error: str = ""
    """The proxy's words, or the upstream's."""
    is_whole: bool = False
    """The client has the answer to its end."""
    texts: dict[int, str] = field(default_factory=dict)
    was_closed: bool = False
    """Its attempt was told to close before the call had ended."""

    @property
    def is_undisturbed(self) -> bool:
        return self.fault == "none" and self.leaves_after_s is None and not self.was_closed

    @property
    def prompt(self) -> str:
        return f"{PLANTED}-{self.number}-"

    def body(self) -> dict[str, Any]:
        fault = {"kind": self.fault, "after": self.after}
        common = {"model": "fake", "stream": self.is_stream, "fault": fault}
        match self.api:
            case "completions":
                return common | {"prompt": self.prompt, "max_tokens": 6, "n": self.num_choices}
            case "responses":
                return common | {"input": self.prompt, "max_output_tokens": 6}
        messages = [{"role": "user", "content": self.prompt}]
        several = {"n": self.num_choices} if self.api == "chat/completions" else {}
        return common | {"messages": messages, "max_tokens": 6, **several}


def make_call(rng: random.Random, number: int, attempt_id: str) -> Call:
    """Half of them nobody disturbs."""
    api = rng.choice(APIS)
    fault = "none" if rng.random() < 0.65 else rng.choice(FAULTS)
    leaves = fault in _HANG or rng.random() < 0.2
    return Call(
        number,
        attempt_id,
        api,
        rng.choice((1, 1, 2, 3)) if api in ("chat/completions", "completions") else 1,
        rng.random() < 0.5,
        fault,
        rng.randrange(12),
        # Most answers are there by then, and some are not.
        rng.uniform(0.0, 0.3) if leaves else None,
    )


async def make(session: aiohttp.ClientSession, url: str, token: str, call: Call) -> None:
    """Ask, and fill in what was seen. A client that leaves closes its connection."""
    headers = {"authorization": f"Bearer {token}"}
    if call.api == "messages":
        headers = {"x-api-key": token}
    try:
        async with asyncio.timeout(call.leaves_after_s):
            await _ask(session, f"{url}/a/{call.attempt_id}/v1/{call.api}", headers, call)
    except (TimeoutError, aiohttp.ClientError):
        call.is_whole = False


async def _ask(session: aiohttp.ClientSession, url: str, headers: dict[str, str], call: Call) -> None:
    async with session.post(url, json=call.body(), headers=headers) as response:
        if response.status != 200 or not call.is_stream:
            body = orjson.loads(await response.read())
            call.status, call.retry_after = response.status, response.headers.get("retry-after")
            call.error = (body.get("error") or {}).get("message", "")
            if response.status == 200:
                call.texts, call.is_whole = _READ[call.api](body), True
            return
        events = []
        rest = b""
        async for piece in response.content.iter_any():
            *blocks, rest = (rest + piece).split(b"\n\n")
            events += [block.rpartition(b"data: ")[2] for block in blocks]
        call.status = 200
        _take_events(call, events)


def _take_events(call: Call, events: list[bytes]) -> None:
    for data in events:
        if data == b"[DONE]":
            call.is_whole = True
            continue
        event = orjson.loads(data)
        kind = event.get("type")
        if event.get("error"):
            call.error = event["error"]["message"]
        call.is_whole = call.is_whole or kind in ("message_stop", "response.completed", "response.incomplete")
        index, text = _delta(event, kind)
        call.texts[index] = call.texts.get(index, "") + text


def _delta(event: dict[str, Any], kind: str | None) -> tuple[int, str]:
    if kind == "content_block_delta":
        return 0, event["delta"]["text"]
    if kind == "response.output_text.delta":
        return 0, event["delta"]
    for choice in event.get("choices") or ():
        return choice["index"], choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return 0, ""


def _of_choices(body: dict[str, Any]) -> dict[int, str]:
    return {
        choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in body["choices"]
    }


def _of_message(body: dict[str, Any]) -> dict[int, str]:
    return {0: "".join(block["text"] for block in body["content"])}


def _of_response(body: dict[str, Any]) -> dict[int, str]:
    return {0: "".join(part["text"] for item in body["output"] for part in item["content"])}


_READ: dict[Api, Callable[[dict[str, Any]], dict[int, str]]] = {
    "chat/completions": _of_choices,
    "completions": _of_choices,
    "messages": _of_message,
    "responses": _of_response,
}
