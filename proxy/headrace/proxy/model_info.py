"""What agents ask about models without calling one: the list of them, and how many tokens a prompt has."""

import asyncio
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from starlette.requests import Request
from starlette.responses import Response

from headrace.proxy import asgi
from headrace.proxy.anthropic import MESSAGES, TOKENIZE_PATH, read_count, tokenize_request
from headrace.proxy.engines import Engines
from headrace.proxy.gate import Gate
from headrace.proxy.load import Load
from headrace.proxy.problem import TOO_DEEP, Problem, RefusedError, bad_request
from headrace.proxy.settings import ProxySettings
from headrace.proxy.upstream import Upstream, UpstreamFailedError, UpstreamTimeoutError


class ModelInfo:
    """Not recorded: nothing is generated."""

    def __init__(
        self, settings: ProxySettings, gate: Gate, load: Load, engines: Engines, upstream: Upstream
    ) -> None:
        self._settings = settings
        self._load = load
        self._gate = gate
        self._engines = engines
        self._upstream = upstream

    async def models(self, request: Request) -> Response:
        """The upstream's own list, or one entry of it."""
        attempt = self._attempt_id(request)
        name = request.path_params.get("model")
        path = "/v1/models" if name is None else f"/v1/models/{_segments(name)}"
        return await self._through(attempt, "GET", path)

    async def count_tokens(self, request: Request) -> Response:
        """Anthropic's, by vLLM's tokenizer; also in how it is refused."""
        try:
            attempt = self._attempt_id(request)
            with self._load.one_more():
                return await self._count_tokens(request, attempt)
        except RefusedError as refused:
            refused.body = MESSAGES.error(refused.problem)
            raise

    async def _count_tokens(self, request: Request, attempt: str) -> Response:
        headers = asgi.headers_of(request.scope)
        body = await asgi.read_body(
            request.receive,
            headers,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        asked = tokenize_request(asgi.json_object(body))
        answer = await self._through(attempt, "POST", TOKENIZE_PATH, asked)
        if answer.status_code != 200:
            error = MESSAGES.upstream_error(answer.status_code, bytes(answer.body))
            return Response(error, answer.status_code, media_type="application/json")
        return Response(read_count(_loaded(bytes(answer.body))), media_type="application/json")

    def _attempt_id(self, request: Request) -> str:
        secret = asgi.secret_of(asgi.headers_of(request.scope))
        return self._gate.attempt_for(request.path_params["attempt_id"], secret).attempt_id

    async def _through(
        self, attempt_id: str, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Response:
        headers = self._upstream.headers()
        try:
            asked = orjson.dumps(body)
        except orjson.JSONEncodeError:
            raise bad_request(TOO_DEEP) from None
        try:
            async with self._engines.acquire(attempt_id) as lease:
                url = lease.engine.url + path
                if method == "GET":
                    async with self._upstream.get(url, headers) as response:
                        return await _copied(response)
                async with (
                    asyncio.timeout(self._settings.idle_timeout_s),
                    self._upstream.post(url, asked, headers) as response,
                ):
                    return await _copied(response)
        except UpstreamFailedError as error:
            raise RefusedError(Problem(502, str(error), "upstream_failed")) from error
        except (UpstreamTimeoutError, TimeoutError) as error:
            problem = Problem(504, "the upstream was silent for too long", "upstream_timeout")
            raise RefusedError(problem) from error


def _loaded(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _segments(name: str) -> str:
    """Of a path, for a name that may have slashes; RefusedError for one that leads to another path."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise RefusedError(Problem(404, "there is no model of that name", "model_not_found"))
    return quote(name, safe="/:@")


async def _copied(response: aiohttp.ClientResponse) -> Response:
    return Response(await response.read(), response.status, media_type=response.content_type)
