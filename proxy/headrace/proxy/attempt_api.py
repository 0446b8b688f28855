"""The attempt API: open, next sequence id, close; for runners, in any language.

`POST /attempts` opens one and gives its path and token, `POST /attempts/{id}/next` hands out a sequence id
that the runner accounts for, `POST /attempts/{id}/close` ends it and says the last id of all (G2).
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.proxy import asgi
from headrace.proxy.attempts import Attempts
from headrace.proxy.gate import Gate
from headrace.proxy.load import Load
from headrace.proxy.problem import RefusedError, bad_request
from headrace.schemas.codec import describe
from headrace.schemas.records.base import Int32, UuidV7

_MAX_BODY_BYTES = 64 * 1024
_BODY_S = 10.0


class AttemptToOpen(BaseModel):
    """The body of a request to open an attempt."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rollout_id: UuidV7
    attempt_id: UuidV7
    attempt: Annotated[Int32, Field(ge=1)] = 1
    agent: str = Field(default="", max_length=200)
    """What its calls are named by that do not name their agent themselves."""


class AttemptApi:
    """The three endpoints. RefusedError is for the application to answer."""

    def __init__(self, attempts: Attempts, gate: Gate, load: Load) -> None:
        self._attempts = attempts
        self._load = load
        self._gate = gate

    async def open(self, request: Request) -> Response:
        headers = asgi.headers_of(request.scope)
        self._gate.check_key(asgi.secret_of(headers))
        with self._load.one_more():
            body = await asgi.read_body(
                request.receive, headers, max_bytes=_MAX_BODY_BYTES, timeout_s=_BODY_S
            )
        try:
            asked = AttemptToOpen.model_validate_json(body)
        except ValidationError as error:
            raise bad_request(describe(error)) from None
        token = self._attempts.open(asked.rollout_id, asked.attempt_id, asked.agent)
        return JSONResponse(
            {"attempt_id": asked.attempt_id, "path": f"/a/{asked.attempt_id}", "token": token}, 201
        )

    async def next(self, request: Request) -> Response:
        attempt = self._gate.attempt_for(request.path_params["attempt_id"], _secret(request))
        return JSONResponse({"sequence_id": attempt.next()})

    async def close(self, request: Request) -> Response:
        attempt_id, secret = request.path_params["attempt_id"], _secret(request)
        try:
            self._gate.attempt_for(attempt_id, secret)
        except RefusedError as refused:
            if refused.problem.status != 410:
                raise
        closed = await self._attempts.close(attempt_id)
        return JSONResponse({"last_sequence_id": closed.last_sequence_id, "failure": closed.failure})


def _secret(request: Request) -> str:
    return asgi.secret_of(asgi.headers_of(request.scope))
