"""Output: a chat answer's message, whole or in deltas, as output items and the events that tell of them.

Both ways give the same items. Text ends where something else begins; calls stay open until the end, as their
pieces may alternate.
"""

from collections.abc import Iterator
from typing import Any

from headrace.proxy.dialect import Json
from headrace.proxy.responses.events import Tell
from headrace.proxy.responses.ids import ResponseIds
from headrace.proxy.responses.items import (
    OUTPUT_TEXT,
    REASONING,
    REFUSAL,
    CallItem,
    Form,
    Status,
    TextItem,
)


class _Call:
    """A tool call, of which nothing is told before its name has come."""

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.waiting: list[str] = []
        self.item: CallItem | None = None


class Output:
    def __init__(self, ids: ResponseIds, custom_names: frozenset[str], tell: Tell) -> None:
        self.items: list[Json] = []
        self._ids = ids
        self._custom_names = custom_names
        self._listener = tell
        self._is_cut = False
        self._text: TextItem | None = None
        self._calls: dict[int, _Call] = {}
        self._call_ids: set[str] = set()
        self._waiting_logprobs: list[Json] = []

    def take(self, message: Json, logprobs: list[Json]) -> None:
        """A message or a delta of one, and the logprobs of its tokens."""
        # Engines use either name, and some both at once, for the same text.
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        calls = message.get("tool_calls")
        content = message.get("content")
        if isinstance(reasoning, str) and reasoning:
            self._grow(REASONING, reasoning, [])
        if isinstance(content, str) and content:
            self._grow(OUTPUT_TEXT, content, self._take_logprobs() + logprobs)
        elif not reasoning and not calls:
            # Tokens that are held back, as they are half a character or may be a stop string.
            self._waiting_logprobs += logprobs
        refusal = message.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._grow(REFUSAL, refusal, [])
        for position, delta in _call_deltas(calls):
            self._take_call(position, delta)

    def close(self, status: Status) -> None:
        """The answer has ended: if it is incomplete, then in its last item."""
        for call in self._calls.values():
            if call.item is None:
                self._open_call(call)
        if not self.items:
            # An empty answer is a turn nonetheless, and the next prompt has it.
            self._message().part_of(OUTPUT_TEXT)
        # Text that is open is the last item: a call would have closed it.
        self._close_text(status)
        for call in self._calls.values():
            if call.item is not None:
                call.item.close(status if call.item.body is self.items[-1] else "completed")

    def cut(self) -> list[Json]:
        """The items as far as they came. Nothing more is told."""
        self._is_cut = True
        if self.items or self._calls:
            self.close("incomplete")
        return self.items

    def _grow(self, form: Form, text: str, logprobs: list[Json]) -> None:
        item = self._reasoning() if form is REASONING else self._message()
        item.grow(form, text, logprobs)

    def _message(self) -> TextItem:
        if self._text is None or self._text.is_reasoning:
            self._close_text("completed")
            body = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
            self._text = TextItem(self._add("msg", body), len(self.items) - 1, self._tell)
        return self._text

    def _reasoning(self) -> TextItem:
        if self._text is None or not self._text.is_reasoning:
            self._close_text("completed")
            body = {"type": "reasoning", "summary": [], "content": []}
            self._text = TextItem(self._add("rs", body), len(self.items) - 1, self._tell)
        return self._text

    def _close_text(self, status: Status) -> None:
        if self._text is not None:
            self._text.close(status, [] if self._text.is_reasoning else self._take_logprobs())
            self._text = None

    def _take_call(self, position: int, delta: Json) -> None:
        call = self._calls.setdefault(position, _Call())
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        call.call_id = call.call_id or _text(delta.get("id"))
        call.name = call.name or _text(function.get("name"))
        if arguments := _text(function.get("arguments")):
            call.waiting.append(arguments)
        if call.item is None and call.name:
            self._open_call(call)
        if call.item is not None:
            for arguments in call.waiting:
                call.item.grow(arguments)
            call.waiting.clear()

    def _open_call(self, call: _Call) -> None:
        self._close_text("completed")
        index = len(self.items)
        call_id = call.call_id
        if not call_id or call_id in self._call_ids:
            call_id = self._ids.call(index)
        self._call_ids.add(call_id)
        body: Json = {"call_id": call_id, "name": call.name}
        if call.name in self._custom_names:
            body = self._add("ctc", {"type": "custom_tool_call", "input": ""} | body)
        else:
            function = {"type": "function_call", "arguments": "", "status": "in_progress"}
            body = self._add("fc", function | body)
        call.item = CallItem(body, index, self._tell)
        for arguments in call.waiting:
            call.item.grow(arguments)
        call.waiting.clear()

    def _tell(self, kind: str, members: Json) -> None:
        if not self._is_cut:
            self._listener(kind, members)

    def _add(self, prefix: str, body: Json) -> Json:
        item = {"id": self._ids.item(prefix, len(self.items))} | body
        self.items.append(item)
        return item

    def _take_logprobs(self) -> list[Json]:
        waiting, self._waiting_logprobs = self._waiting_logprobs, []
        return waiting


def _call_deltas(calls: Any) -> Iterator[tuple[int, Json]]:  # noqa: ANN401  JSON
    for position, delta in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(delta, dict):
            index = delta.get("index")
            yield index if isinstance(index, int) else position, delta


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
