"""Content blocks of a request: read, and put in a chat completion's words. Pure.

What has no words there is refused by name and place, never left out.
"""

from typing import Any, NamedTuple

from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError, bad_request


class Block(NamedTuple):
    kind: str
    value: Json
    where: str
    """Its path in the request, `messages.2.content.0`."""


def read_blocks(content: Any, where: str) -> list[Block]:  # noqa: ANN401  JSON
    """A text stands for one text block. RefusedError if it is neither a text nor a list of blocks."""
    if isinstance(content, str):
        return [Block("text", {"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise bad_request("a text or a list of content blocks is expected", where)
    return [_read(value, f"{where}.{index}") for index, value in enumerate(content)]


def text_of(block: Block) -> str:
    return member(block, "text")


def member(block: Block, name: str) -> str:
    """A member that must be a text."""
    value = block.value.get(name)
    if not isinstance(value, str):
        raise bad_request(f"a text is expected in a block of type {block.kind}", f"{block.where}.{name}")
    return value


def texts_of(blocks: list[Block]) -> list[str]:
    """Where nothing but text can stand. An empty text says nothing."""
    for block in blocks:
        if block.kind != "text":
            raise unsupported(block)
    return [text for block in blocks if (text := text_of(block))]


def image_part(block: Block) -> Json:
    """As an `image_url` part, the bytes in it as a data URL."""
    source = block.value.get("source")
    where = f"{block.where}.source"
    if not isinstance(source, dict):
        raise bad_request("an image needs a source", where)
    inner = Block(f"{block.kind} source", source, where)
    match source.get("type"):
        case "url":
            url = member(inner, "url")
        case "base64":
            url = f"data:{member(inner, 'media_type')};base64,{member(inner, 'data')}"
        case _:
            raise bad_request("images come as base64 or url: there is no store of files here", where)
    return {"type": "image_url", "image_url": {"url": url}}


def unsupported(block: Block) -> RefusedError:
    return bad_request(f"content of type {block.kind} can't stand here: {_WHY}", block.where)


def _read(value: Any, where: str) -> Block:  # noqa: ANN401  JSON
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise bad_request("a content block is an object with a type", where)
    return Block(value["type"], value, where)


_WHY = "models behind this proxy take text, images, tool_use, tool_result and thinking"
