"""The conversation of a request, as messages of a chat completion. Pure.

The next turn's prompt must extend this one's, id for id (C7), so an earlier answer goes back as what the
model wrote: its text is one text again, however many blocks it was cut into, and its thinking is given apart,
for the chat template to keep or to leave out.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from headrace.proxy.anthropic.blocks import (
    Block,
    image_part,
    member,
    read_blocks,
    text_of,
    texts_of,
    unsupported,
)
from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request

_BILLING = "x-anthropic-billing-header"
"""Claude Code puts this line before its system prompt, with a hash that differs from call to call: with it no
prompt would extend the one before. vLLM leaves it out too."""


def read_conversation(body: Json) -> list[Json]:
    """`system` and `messages`; RefusedError, whose `param` is the path of what can't be said."""
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise bad_request("at least one message is expected", "messages")
    chat = _system(body.get("system"))
    for index, message in enumerate(given):
        chat.extend(_read_message(message, f"messages.{index}"))
    return chat


def _system(given: Any) -> list[Json]:  # noqa: ANN401  JSON
    if given is None:
        return []
    texts = (_without_billing(text) for text in texts_of(read_blocks(given, "system")))
    content = "\n".join(text for text in texts if text)
    return [{"role": "system", "content": content}] if content else []


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _read_message(message: Any, where: str) -> Iterator[Json]:  # noqa: ANN401  JSON
    if not isinstance(message, dict):
        raise bad_request("a message is an object", where)
    blocks = read_blocks(message.get("content"), f"{where}.content")
    match message.get("role"):
        case "user":
            yield from _user(blocks)
        case "assistant":
            yield _assistant(blocks)
        case "system":
            yield {"role": "system", "content": "\n".join(texts_of(blocks))}
        case _:
            raise bad_request("a role is user, assistant or system", f"{where}.role")


def _user(blocks: list[Block]) -> Iterator[Json]:
    """Tool results are messages of their own, where they stand among the rest.

    Images in them come with what the user says next: few chat templates show an image in a tool's message.
    """
    parts: list[Json] = []
    images: list[Json] = []
    is_empty = True
    for block in blocks:
        if block.kind == "tool_result":
            if parts:
                yield _said(parts)
                parts = []
            text, shown = _tool_result(block)
            yield {"role": "tool", "tool_call_id": member(block, "tool_use_id"), "content": text}
            images += shown
            is_empty = False
        elif part := _user_part(block):
            parts += [*images, part]
            images = []
    if parts or images or is_empty:
        yield _said(parts + images)


def _user_part(block: Block) -> Json | None:
    match block.kind:
        case "text":
            text = text_of(block)
            return {"type": "text", "text": text} if text else None
        case "image":
            return image_part(block)
        case _:
            raise unsupported(block)


def _said(parts: list[Json]) -> Json:
    if not parts:
        return {"role": "user", "content": ""}
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": "user", "content": parts[0]["text"] if is_text else parts}


def _tool_result(block: Block) -> tuple[str, list[Json]]:
    """Its text and its images. A tool's message has no mark for an error: the text says so."""
    content = block.value.get("content")
    inner = [] if content is None else read_blocks(content, f"{block.where}.content")
    images = [image_part(each) for each in inner if each.kind == "image"]
    text = "\n".join(texts_of([each for each in inner if each.kind != "image"]))
    if block.value.get("is_error") is True and not text.lower().startswith("error"):
        text = f"Error: {text}" if text else "Error"
    return text, images


def _assistant(blocks: list[Block]) -> Json:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for block in blocks:
        match block.kind:
            case "text":
                texts.append(text_of(block))
            case "thinking":
                thoughts.append(member(block, "thinking"))
            case "redacted_thinking":
                pass  # sealed by who made it: there is nothing to read
            case "tool_use":
                calls.append(_tool_call(block))
            case _:
                raise unsupported(block)
    text = "".join(texts)
    message: Json = {"role": "assistant", "content": text if text or not calls else None}
    if thought := "".join(thoughts):
        message["reasoning"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(block: Block) -> Json:
    arguments = block.value.get("input")
    if not isinstance(arguments, dict):
        raise bad_request("the input of a tool is an object", f"{block.where}.input")
    function = {"name": member(block, "name"), "arguments": orjson.dumps(arguments).decode()}
    return {"id": member(block, "id"), "type": "function", "function": function}
