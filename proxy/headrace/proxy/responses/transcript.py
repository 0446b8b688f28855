"""Transcript: items of a conversation as chat messages.

One answer of the model is several items, and one chat message: reasoning, then text, then calls. They are put
together again, so that the next prompt begins with the tokens of the last one and of its answer (C7).
"""

from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request
from headrace.proxy.responses.parts import content_of, kind_of, spoken, text_in
from headrace.proxy.responses.tools import custom_arguments

# Chat templates of open models know no developer.
_ROLES = {"user": "user", "system": "system", "developer": "system"}


class Transcript:
    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Json] = []
        if instructions is not None:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, item: Json, where: str) -> None:
        """RefusedError for what a chat has no words for; `where` is the item's place in the request."""
        is_easy = item.get("type") is None and "role" in item
        kind = "message" if is_easy else kind_of(item, where)
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "function_call":
                self._call(item, text_in(item, "arguments", where), where)
            case "custom_tool_call":
                self._call(item, custom_arguments(text_in(item, "input", where)), where)
            case "function_call_output" | "custom_tool_call_output":
                self._output(item, where)
            case _:
                raise bad_request(
                    f"input items of type {kind!r} are not supported: there are no hosted tools here",
                    f"{where}.type",
                )

    def _message(self, item: Json, where: str) -> None:
        role = item.get("role")
        if role == "assistant":
            self._said(item, where)
        elif isinstance(role, str) and role in _ROLES:
            content = content_of(item.get("content"), f"{where}.content")
            self.messages.append({"role": _ROLES[role], "content": content})
        else:
            raise bad_request("role must be one of user, assistant, system, developer", f"{where}.role")

    def _said(self, item: Json, where: str) -> None:
        text, refusal = spoken(item.get("content"), f"{where}.content")
        message = self._assistants_last()
        if message is None or "content" in message:
            message = self._new_assistants()
        message["content"] = text
        if refusal is not None:
            message["refusal"] = refusal

    def _reasoning(self, item: Json, where: str) -> None:
        text = _reasoning_text(item, where)
        if not text:
            return
        message = self._assistants_last()
        if message is None or message.keys() - {"role", "reasoning_content"}:
            message = self._new_assistants()
        message["reasoning_content"] = message.get("reasoning_content", "") + text

    def _call(self, item: Json, arguments: str, where: str) -> None:
        call = {
            "id": text_in(item, "call_id", where),
            "type": "function",
            "function": {"name": text_in(item, "name", where), "arguments": arguments},
        }
        message = self._assistants_last()
        if message is None:
            message = self._new_assistants()
        message.setdefault("tool_calls", []).append(call)

    def _output(self, item: Json, where: str) -> None:
        call_id = text_in(item, "call_id", where)
        content = content_of(item.get("output"), f"{where}.output")
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _assistants_last(self) -> Json | None:
        """The last message, if the model spoke it."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return None

    def _new_assistants(self) -> Json:
        self.messages.append({"role": "assistant"})
        return self.messages[-1]


def _reasoning_text(item: Json, where: str) -> str:
    """The text itself, or its summary where there is no more, as vLLM has it."""
    for member in ("content", "summary"):
        parts = item.get(member)
        if isinstance(parts, list) and parts:
            return "".join(
                text_in(part, "text", f"{where}.{member}[{index}]") for index, part in enumerate(parts)
            )
    if item.get("encrypted_content"):
        raise bad_request("encrypted reasoning can't be read here", f"{where}.encrypted_content")
    return ""
