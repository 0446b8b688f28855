"""An upstream that answers as vLLM does, at once, and fails as it is told to: for tests, and benches.

What it says follows from the answer's own id, so that whoever holds a span can tell what was generated. A
request says what shall happen by a member that the proxy passes on: `"fault": {"kind": …, "after": tokens}`.
"""

import asyncio
import contextlib
import itertools
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

import orjson
import uvicorn

Json = dict[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

FAULTS = (
    "none",
    "http_500",
    "http_400",
    "not_json",
    "no_choices",
    "no_ids",
    "usage_lies",
    "dies",
    "ends_early",
    "error_event",
    "hangs",
    "stalls",
    "usage_only",
)
_numbers = itertools.count()
_run = random.SystemRandom().getrandbits(32)


class Said(NamedTuple):
    """One choice of an answer, as the engine had it."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def words(self) -> list[str]:
        return [f"w{each} " for each in self.ids]

    @property
    def text(self) -> str:
        return "".join(self.words)


def said(answer_id: str, index: int = 0) -> Said:
    """What the answer of this id said in that choice."""
    number, num_tokens = answer_id.rsplit("-", 2)[1:]
    rng = random.Random(f"{number}-{index}")
    prompt = random.Random(number)
    length = int(num_tokens)
    return Said(
        tuple(prompt.randrange(1000) for _ in range(3 + int(number) % 5)),
        tuple(rng.randrange(1000) for _ in range(length)),
        tuple(-rng.random() * 3 for _ in range(length)),
    )


async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    path = scope["path"]
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if path in ("/v1/chat/completions", "/v1/completions"):
        await _complete(orjson.loads(body), receive, send, is_chat=path == "/v1/chat/completions")
    elif path == "/v1/models":
        await _json(
            send, 200, {"object": "list", "data": [{"id": "fake", "object": "model", "owned_by": "vllm"}]}
        )
    elif path == "/weight_info":
        await _json(send, 200, {"weight_version": "default"})
    elif path == "/tokenize":
        await _json(send, 200, {"count": 7, "max_model_len": 100, "tokens": [1] * 7})
    elif path in ("/health", "/version"):
        await _json(send, 200, {"version": "fake"})
    else:
        await _json(send, 404, {"error": {"message": "not here", "type": "NotFoundError", "code": 404}})


async def _complete(request: Json, receive: Receive, send: Send, *, is_chat: bool) -> None:
    fault = request.get("fault") or {"kind": "none"}
    kind = fault["kind"]
    num_tokens = int(request.get("max_tokens") or request.get("max_completion_tokens") or 8)
    answer_id = f"fake-{(_run << 32) + next(_numbers)}-{num_tokens}"
    if kind == "http_500":
        await _json(send, 500, {"error": {"message": "broken", "type": "InternalServerError", "code": 500}})
    elif kind == "http_400":
        message = "This model's maximum context length is 10 tokens"
        await _json(send, 400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
    elif kind == "not_json":
        await _whole(send, 200, b"<html>")
    elif kind == "hangs" or (kind == "stalls" and not request.get("stream")):
        await _gone(receive)
    else:
        answer = _Answer(request, answer_id, kind, is_chat=is_chat)
        if request.get("stream"):
            await _stream(receive, send, answer, int(fault.get("after", 0)))
        elif kind in ("dies", "ends_early", "error_event"):
            await send(
                {"type": "http.response.start", "status": 200, "headers": _headers(b"application/json", 999)}
            )
            await send({"type": "http.response.body", "body": b'{"id": "cut', "more_body": True})
            raise ConnectionResetError
        else:
            await _json(send, 200, answer.whole())


class _Answer:
    def __init__(self, request: Json, answer_id: str, kind: str, *, is_chat: bool) -> None:
        self.request = request
        self.id = answer_id
        self.kind = kind
        self.is_chat = is_chat
        self.choices = 0 if kind in ("no_choices", "usage_only") else int(request.get("n") or 1)
        self.has_ids = bool(request.get("return_token_ids")) and kind != "no_ids"
        logprobs = request.get("logprobs")
        self.has_logprobs = logprobs is not None and logprobs is not False

    def head(self, *, is_chunk: bool) -> Json:
        what = "chat.completion" if self.is_chat else "text_completion"
        suffix = ".chunk" if is_chunk and self.is_chat else ""
        return {"id": self.id, "object": what + suffix, "created": 1_700_000_000, "model": "fake"}

    def usage(self) -> Json:
        each = said(self.id)
        completion = len(each.ids) * self.choices + (1 if self.kind == "usage_lies" else 0)
        return {
            "prompt_tokens": len(each.prompt),
            "completion_tokens": completion,
            "total_tokens": len(each.prompt) + completion,
        }

    def logprobs(self, what: Said, start: int, end: int) -> Json | None:
        if not self.has_logprobs:
            return None
        logprobs = what.logprobs[start:end]
        if self.request.get("logit_bias"):
            logprobs = (0.0,) * len(logprobs)
        pairs = list(zip(what.words[start:end], logprobs, strict=True))
        if self.is_chat:
            return {
                "content": [
                    {"token": word, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for word, logprob in pairs
                ]
            }
        return {
            "tokens": [word for word, _ in pairs],
            "token_logprobs": [logprob for _, logprob in pairs],
            "top_logprobs": [],
            "text_offset": [],
        }

    def whole(self) -> Json:
        answer = self.head(is_chunk=False)
        answer["choices"] = [self._choice(index) for index in range(self.choices)]
        answer["usage"] = self.usage()
        if self.has_ids and self.is_chat:
            answer["prompt_token_ids"] = list(said(self.id).prompt)
        return answer

    def _choice(self, index: int) -> Json:
        what = said(self.id, index)
        choice: Json = {
            "index": index,
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": self.logprobs(what, 0, len(what.ids)),
        }
        choice |= (
            {"message": {"role": "assistant", "content": what.text, "refusal": None}}
            if self.is_chat
            else {"text": what.text}
        )
        if self.has_ids:
            choice["token_ids"] = list(what.ids)
            if not self.is_chat:
                choice["prompt_token_ids"] = list(what.prompt)
        return choice

    def chunks(self) -> Iterator[Json]:
        for index in range(self.choices):
            what = said(self.id, index)
            if self.is_chat:
                yield self._chunk(
                    index, {"delta": {"role": "assistant", "content": ""}, "logprobs": None}, what, 0, 0
                )
            for place, word in enumerate(what.words):
                text = {"delta": {"content": word}} if self.is_chat else {"text": word}
                yield self._chunk(index, text, what, place, place + 1)

    def _chunk(self, index: int, body: Json, what: Said, start: int, end: int) -> Json:
        is_last = end == len(what.ids)
        choice: Json = {"index": index, **body, "finish_reason": "stop" if is_last and end else None}
        choice.setdefault("logprobs", self.logprobs(what, start, end))
        chunk = self.head(is_chunk=True) | {"choices": [choice]}
        if self.has_ids:
            if end > start:
                choice["token_ids"] = list(what.ids[start:end])
            if start == 0 and self.is_chat and end == 0:
                chunk["prompt_token_ids"] = list(what.prompt)
            if start == 0 and not self.is_chat:
                choice["prompt_token_ids"] = list(what.prompt)
        return chunk


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(receive: Receive, send: Send, answer: _Answer, after: int) -> None:
    """`after` chunks, and then what shall go wrong."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    pieces = [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in answer.chunks()]
    if answer.kind in ("dies", "ends_early", "error_event"):
        await _body(send, b"".join(pieces[:after]), more=True)
        if answer.kind == "dies":
            raise ConnectionResetError
        error = b'data: {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}\n\n'
        await _body(send, error if answer.kind == "error_event" else b"", more=False)
        return
    if answer.kind == "stalls":
        await _body(send, b"".join(pieces[:after]), more=True)
        await _gone(receive)
        return
    for piece in pieces:
        await _body(send, piece, more=True)
    if (answer.request.get("stream_options") or {}).get("include_usage"):
        last = answer.head(is_chunk=True) | {"choices": [], "usage": answer.usage()}
        await _body(send, b"data: " + orjson.dumps(last) + b"\n\n", more=True)
    await _body(send, b"data: [DONE]\n\n", more=False)


async def _json(send: Send, status: int, value: object) -> None:
    await _whole(send, status, orjson.dumps(value))


async def _whole(send: Send, status: int, body: bytes) -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": _headers(b"application/json", len(body))}
    )
    await _body(send, body, more=False)


async def _body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _headers(content_type: bytes, length: int) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", content_type), (b"content-length", str(length).encode())]


def _server() -> uvicorn.Server:
    config = uvicorn.Config(
        app, loop="none", http="httptools", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, timeout_keep_alive=60,
    )  # fmt: skip
    return uvicorn.Server(config)


@contextlib.contextmanager
def fake_vllm() -> Iterator[str]:
    """Its base URL; it runs in a thread of this process."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        server = _server()
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


if __name__ == "__main__":
    # A process of its own: says where it listens, and ends with its standard input.
    with fake_vllm() as url:
        print(url, flush=True)
        with contextlib.suppress(EOFError):
            input()
