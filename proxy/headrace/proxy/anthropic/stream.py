"""Chunks of a chat completion, as the events of a message. Pure.

Text and thinking flow as they come. Tool calls come whole, when the stream has ended: libraries may run a
tool as soon as its block is closed, and an agent must not act on what is not recorded yet (G1). Only then is
it known, too, whether the arguments are JSON. So blocks never overlap, however the calls were interleaved.
"""

import orjson

from headrace.proxy import sse
from headrace.proxy.anthropic.answer import (
    UNSIGNED,
    Ending,
    ToolUse,
    head_of,
    read_calls,
    text_block,
    text_in,
    thinking_block,
    thought_in,
    usage_of,
)
from headrace.proxy.dialect import Json
from headrace.proxy.merge import merge_delta, ordered_tool_calls

_PING: Json = {"type": "ping"}


class MessageStream:
    """Of one message: `feed` for each chunk, then `finish` once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._is_started = False
        self._open: str | None = None
        """The kind of the block that is open: text or thinking."""
        self._num_blocks = 0
        self._calls: Json = {}
        self._ending = Ending(None, None)
        self._usage: Json | None = None

    def feed(self, chunk: Json) -> bytes:
        """A ping for a piece of a tool call: it keeps the client from giving up on a long one."""
        events = self._start(chunk)
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                events += self._take(choice)
        return b"".join(map(_event, events))

    def finish(self) -> bytes:
        calls = read_calls(ordered_tool_calls(self._calls).get("tool_calls"))
        events = self._start({}) + self._close()
        for call in calls:
            events += self._tool_use(call)
        if not self._num_blocks:
            # Also an answer of nothing has a block: there are clients that read the first without looking.
            events += self._begin("text") + self._close()
        usage = usage_of(self._usage)
        events.append({"type": "message_delta", "delta": self._ending.stop(calls), "usage": usage})
        events.append({"type": "message_stop"})
        return b"".join(map(_event, events))

    def _start(self, chunk: Json) -> list[Json]:
        if self._is_started:
            return []
        self._is_started = True
        return [{"type": "message_start", "message": head_of(chunk, self._model)}]

    def _take(self, choice: Json) -> list[Json]:
        delta = choice.get("delta") or {}
        events = []
        if thought := thought_in(delta):
            events += self._begin("thinking")
            events.append(self._delta({"type": "thinking_delta", "thinking": thought}))
        if text := text_in(delta):
            events += self._begin("text")
            events.append(self._delta({"type": "text_delta", "text": text}))
        if calls := delta.get("tool_calls"):
            merge_delta(self._calls, {"tool_calls": calls})
            events = events or [_PING]
        reason = choice.get("finish_reason")
        self._ending = Ending(
            reason or self._ending.finish_reason,
            choice.get("stop_reason") if reason else self._ending.matched,
            self._ending.is_refusal or bool(delta.get("refusal")),
        )
        return events

    def _begin(self, kind: str) -> list[Json]:
        """Make it the open block."""
        if self._open == kind:
            return []
        events = self._close()
        self._open = kind
        block = text_block("") if kind == "text" else thinking_block("", "")
        return [*events, {"type": "content_block_start", "index": self._num_blocks, "content_block": block}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._num_blocks, "delta": delta}

    def _close(self) -> list[Json]:
        if self._open is None:
            return []
        events = []
        if self._open == "thinking":
            events.append(self._delta({"type": "signature_delta", "signature": UNSIGNED}))
        events.append({"type": "content_block_stop", "index": self._num_blocks})
        self._open = None
        self._num_blocks += 1
        return events

    def _tool_use(self, call: ToolUse) -> list[Json]:
        index = self._num_blocks
        self._num_blocks += 1
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        return [
            {"type": "content_block_start", "index": index, "content_block": call.head()},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]


def _event(value: Json) -> bytes:
    return sse.event(orjson.dumps(value), value["type"])
