"""What agents send beside model calls: OTLP traces and rewards, at the attempt's own URL."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from headrace.proxy import asgi
from headrace.proxy.attempts import OpenAttempt
from headrace.proxy.gate import Gate
from headrace.proxy.load import Load
from headrace.proxy.problem import Problem, RefusedError
from headrace.proxy.recorder import Recorder
from headrace.proxy.settings import ProxySettings
from headrace.streams.runner import http_message

_UNPACK_HERE_BYTES = 32 * 1024
"""A body up to this size unpacks faster than a thread takes it over."""


class EventApi:
    def __init__(self, settings: ProxySettings, gate: Gate, load: Load, recorder: Recorder) -> None:
        self._settings = settings
        self._load = load
        self._gate = gate
        self._recorder = recorder

    async def traces(self, request: Request) -> Response:
        """OTLP/HTTP, JSON or protobuf. https://opentelemetry.io/docs/specs/otlp/#otlphttp"""
        with self._load.one_more():
            attempt, body = await self._taken(request)
            return _answer(await attempt.requests.traces(body, request.headers.get("content-type", "")))

    async def rewards(self, request: Request) -> Response:
        """`{"value": 0.5}`, with `name`, `about` and `reward_id` if wanted."""
        with self._load.one_more():
            attempt, body = await self._taken(request)
            return _answer(await attempt.requests.reward(body))

    async def _taken(self, request: Request) -> tuple[OpenAttempt, bytes]:
        headers = asgi.headers_of(request.scope)
        attempt = self._gate.attempt_for(request.path_params["attempt_id"], asgi.secret_of(headers))
        body = await asgi.read_body(
            request.receive,
            headers,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        trouble = self._recorder.trouble()
        if trouble is not None:
            raise RefusedError(trouble)
        encoding = headers.get("content-encoding", "")
        try:
            if encoding and len(body) > _UNPACK_HERE_BYTES:
                body = await asyncio.to_thread(
                    http_message.unpack, body, encoding, 4 * self._settings.max_body_bytes
                )
            else:
                body = http_message.unpack(body, encoding, 4 * self._settings.max_body_bytes)
        except http_message.RefusedError as error:
            raise RefusedError(Problem(error.status, str(error), "invalid_request")) from error
        return attempt, body


def _answer(given: http_message.Response) -> Response:
    return Response(given.body, given.status, dict(given.headers), given.content_type)
