"""Content of input items as chat completions have it."""

from typing import Any

from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request

_TEXTS = frozenset({"input_text", "output_text", "text"})


def content_of(content: object, where: str) -> str | list[Json]:
    """A user's, a system's or a tool's. A single text is a string, which every upstream takes."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request("a string or a list of content parts is expected", where)
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def spoken(content: object, where: str) -> tuple[str, str | None]:
    """What the model said, and how it refused. Of several parts the text is joined: the model wrote it so."""
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise bad_request("a string or a list of content parts is expected", where)
    texts: list[str] = []
    refusals: list[str] = []
    for index, part in enumerate(content):
        there = f"{where}[{index}]"
        kind = kind_of(part, there)
        if kind in _TEXTS:
            texts.append(text_in(part, "text", there))
        elif kind == "refusal":
            refusals.append(text_in(part, "refusal", there))
        else:
            raise bad_request(f"an assistant's message has no parts of type {kind!r}", f"{there}.type")
    return "".join(texts), "".join(refusals) if refusals else None


def kind_of(value: object, where: str) -> str:
    """The `type` of an object."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise bad_request("an object with a type is expected", where)
    return kind


def text_in(value: object, member: str, where: str) -> str:
    text = value.get(member) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise bad_request(f"{member} must be a string", f"{where}.{member}")
    return text


def _part(part: Any, where: str) -> Json:  # noqa: ANN401  JSON
    kind = kind_of(part, where)
    if kind in _TEXTS:
        return {"type": "text", "text": text_in(part, "text", where)}
    if kind == "input_image":
        return _image(part, where)
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise bad_request(f"content of type {kind!r} can't be sent to this model", f"{where}.type")


def _image(part: Json, where: str) -> Json:
    if part.get("image_url") is None:
        raise bad_request("an image needs its image_url: there are no uploaded files here", where)
    url: Json = {"url": text_in(part, "image_url", where)}
    if part.get("detail") is not None:
        url["detail"] = part["detail"]
    return {"type": "image_url", "image_url": url}
