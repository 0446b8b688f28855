"""The application: which path leads where, and how refusals and faults are answered."""

import contextlib
import math
from collections.abc import Callable

import structlog
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.proxy.anthropic import MESSAGES
from headrace.proxy.asgi import ClientGoneError
from headrace.proxy.attempt_api import AttemptApi
from headrace.proxy.attempts import Attempts
from headrace.proxy.call import Parts
from headrace.proxy.dialect import Dialect
from headrace.proxy.event_api import EventApi
from headrace.proxy.gate import Gate
from headrace.proxy.load import Load
from headrace.proxy.model_endpoint import DialectOf, ModelEndpoint
from headrace.proxy.model_info import ModelInfo
from headrace.proxy.openai import CHAT, COMPLETIONS, error_body
from headrace.proxy.problem import Problem, RefusedError
from headrace.proxy.responses.dialect import ResponsesDialect

log = structlog.get_logger(__name__)


def application(parts: Parts, attempts: Attempts, gate: Gate) -> ASGIApp:
    """An ASGI application."""
    load = Load(parts.settings.max_calls)
    others = Load(parts.settings.max_requests, "requests")
    api = AttemptApi(attempts, gate, others)
    events = EventApi(parts.settings, gate, others, parts.recorder)
    info = ModelInfo(parts.settings, gate, others, parts.engines, parts.upstream)
    state = _State(parts, attempts, load)

    def calls(dialect_of: DialectOf, errors_in: Dialect) -> ModelEndpoint:
        return ModelEndpoint(parts, gate, load, dialect_of, errors_in)

    at = "/a/{attempt_id}"
    routes = [
        # The busiest first: they are tried in order.
        Route(f"{at}/v1/chat/completions", calls(lambda _: CHAT, CHAT), methods=["POST"]),
        Route("/attempts/{attempt_id}/next", api.next, methods=["POST"]),
        Route(f"{at}/v1/messages", calls(lambda _: MESSAGES, MESSAGES), methods=["POST"]),
        Route(
            f"{at}/v1/responses",
            calls(lambda attempt: ResponsesDialect(attempt.responses), CHAT),
            methods=["POST"],
        ),
        Route(f"{at}/v1/completions", calls(lambda _: COMPLETIONS, COMPLETIONS), methods=["POST"]),
        Route(f"{at}/v1/traces", events.traces, methods=["POST"]),
        Route(f"{at}/rewards", events.rewards, methods=["POST"]),
        Route(f"{at}/v1/messages/count_tokens", info.count_tokens, methods=["POST"]),
        Route(f"{at}/v1/models", info.models, methods=["GET"]),
        Route(f"{at}/v1/models/{{model:path}}", info.models, methods=["GET"]),
        Route("/attempts", api.open, methods=["POST"]),
        Route("/attempts/{attempt_id}/close", api.close, methods=["POST"]),
        Route("/healthz", state.health, methods=["GET"]),
        Route("/readyz", state.readiness, methods=["GET"]),
        Route("/metrics", state.metrics, methods=["GET"]),
    ]
    return _Quiet(
        Starlette(
            routes=routes,
            exception_handlers={
                RefusedError: _refusals(parts),
                ClientGoneError: _nobody,
                HTTPException: _http_error,
                Exception: _fault,
            },
        )
    )


class _Quiet:
    """A fault is answered and logged by then, as a type; the server would log its message as well."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(Exception):
            await self._app(scope, receive, send)


class _State:
    """What the proxy says of itself."""

    def __init__(self, parts: Parts, attempts: Attempts, load: Load) -> None:
        self._parts = parts
        self._attempts = attempts
        self._load = load

    async def health(self, _: Request) -> Response:
        """The process answers; nothing else is asked."""
        return JSONResponse({"status": "ok"})

    async def readiness(self, _: Request) -> Response:
        """503 if no call could be taken now, with the reason, and each engine's state either way."""
        trouble = self._parts.recorder.trouble()
        engines = self._parts.engines.describe()
        serving = any(engine["state"] == "serving" for engine in engines)
        reason = trouble.message if trouble else None if serving else "no engine is serving"
        body: dict[str, object] = {"ready": reason is None, "reason": reason, "engines": engines}
        weights = self._parts.weights
        if weights is not None and weights.newest is not None:
            body["weights"] = {"newest": str(weights.newest), "not_loaded_because": weights.why_bad}
        return JSONResponse(body, 200 if reason is None else 503)

    async def metrics(self, _: Request) -> Response:
        metrics = self._parts.metrics
        metrics.running_calls.set(self._load.running)
        metrics.open_attempts.set(len(self._attempts))
        metrics.unacknowledged.set(self._parts.recorder.num_pending)
        for engine in self._parts.engines:
            version = -1 if engine.version is None else engine.version[1]
            metrics.engine_calls.labels(engine.name).set(engine.num_calls)
            metrics.engine_serving.labels(engine.name).set(engine.state == "serving")
            metrics.engine_version.labels(engine.name).set(version)
            metrics.engine_gap.labels(engine.name).set(math.nan if engine.gap is None else engine.gap)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _refusals(parts: Parts) -> Callable[[Request, Exception], Response]:
    def answer(_: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)  # noqa: S101  registered for these
        parts.metrics.refused.labels(error.problem.code).inc()
        return _response(error.problem, error.body)

    return answer


def _nobody(_: Request, __: Exception) -> Response:
    """The client went before its request was whole: nothing has failed here."""
    return Response(status_code=499)


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  registered for these
    if error.status_code == 404:
        problem = Problem(404, "there is nothing here; a base URL is /a/{attempt_id}/v1", "not_found")
    else:
        problem = Problem(error.status_code, error.detail, error.detail.lower().replace(" ", "_"))
    response = _response(problem)
    response.headers.update(error.headers or {})
    return response


def _fault(request: Request, error: Exception) -> Response:
    # As a type alone: messages may quote what agents sent.
    log.error("request failed", path=request.scope["route"].path, error=type(error).__name__)
    return _response(Problem(500, "an error of the proxy's", "internal_error"))


def _response(problem: Problem, body: bytes | None = None) -> Response:
    headers = {} if problem.retry_after_s is None else {"retry-after": str(problem.retry_after_s)}
    return Response(body or error_body(problem), problem.status, headers, "application/json")
