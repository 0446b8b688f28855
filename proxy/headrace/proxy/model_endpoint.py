"""ModelEndpoint: a route at which agents call models; checks first, then a ModelCall."""

import re
from collections.abc import Callable, Mapping

import orjson

from headrace.proxy import asgi
from headrace.proxy.asgi import ClientGoneError, Receive, Scope, Send, send_problem
from headrace.proxy.ask import num_choices
from headrace.proxy.attempts import OpenAttempt
from headrace.proxy.call import ModelCall, Parts
from headrace.proxy.dialect import Dialect
from headrace.proxy.gate import Gate
from headrace.proxy.load import Load
from headrace.proxy.problem import TOO_DEEP, Problem, RefusedError, bad_request
from headrace.proxy.server import ABORT
from headrace.proxy.spans import Call, Place
from headrace.schemas.records import now
from headrace.streams.runner.errors import AttemptClosedError

AGENT_HEADER = "x-headrace-agent"
"""Names the agent of the call, where one attempt has several."""
_MAX_AGENT = 200
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

DialectOf = Callable[[OpenAttempt], Dialect]


class ModelEndpoint:
    """An ASGI application for one path."""

    def __init__(
        self, parts: Parts, gate: Gate, load: Load, dialect_of: DialectOf, errors_in: Dialect
    ) -> None:
        """`errors_in` has the shape of errors before the attempt is known."""
        self._parts = parts
        self._gate = gate
        self._load = load
        self._dialect_of = dialect_of
        self._errors_in = errors_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._call(scope, receive, send)
        except ClientGoneError:
            return
        except AttemptClosedError:
            await self._refuse(send, Problem(410, "this attempt has ended", "attempt_ended"))
        except RefusedError as refused:
            await self._refuse(send, refused.problem)

    async def _refuse(self, send: Send, problem: Problem) -> None:
        self._parts.metrics.refused.labels(problem.code).inc()
        await send_problem(send, problem, self._errors_in.error(problem))

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = asgi.headers_of(scope)
        attempt = self._gate.attempt_for(scope["path_params"]["attempt_id"], asgi.secret_of(headers))
        with self._load.one_more():
            call = await self._read(attempt, scope, receive, send)
            await call.run(receive, headers.get("traceparent", ""))

    async def _read(self, attempt: OpenAttempt, scope: Scope, receive: Receive, send: Send) -> ModelCall:
        settings, headers = self._parts.settings, asgi.headers_of(scope)
        body = await asgi.read_body(
            receive, headers, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        dialect = self._dialect_of(attempt)
        try:
            exchange = dialect.open(asgi.json_object(body))
        except orjson.JSONEncodeError:
            raise bad_request(TOO_DEEP) from None
        trouble = self._parts.recorder.trouble()
        if trouble is not None:
            raise RefusedError(trouble)
        call = Call(
            place=_place(attempt, headers),
            operation=dialect.operation,
            dialect=dialect.name,
            body=body,
            request=exchange.request,
            started=now(),
            is_stream=exchange.is_stream,
            num_choices=num_choices(exchange.request, dialect.operation),
        )
        connection = scope["extensions"][ABORT]
        return ModelCall(self._parts, attempt, dialect, exchange, call, send=send, abort=connection["abort"])


def _place(attempt: OpenAttempt, headers: Mapping[str, str]) -> Place:
    events = attempt.events
    trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    trace_id, parent = trace.groups() if trace else (events.trace_id, "")
    agent = headers.get(AGENT_HEADER, attempt.agent)[:_MAX_AGENT]
    return Place(events.rollout_id, events.attempt_id, trace_id, parent, agent)
