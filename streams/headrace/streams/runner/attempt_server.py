"""The URL of an attempt: rewards and traces from a command, in whatever language.

`POST /a/{attempt_id}/rewards` takes `{"value": 0.5}` with `name`, `about` and `reward_id` if wanted;
`POST /a/{attempt_id}/v1/traces` takes OTLP as JSON or protobuf. The answer comes when Kafka has acknowledged
what was sent (G1). Who knows an attempt's id may speak for it: the server listens on loopback alone.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.records import OUTCOME
from headrace.schemas.records.base import Identifier, SequenceId, UuidV7
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.strict_json import decode, parse
from headrace.streams.runner import otlp_receiver
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError
from headrace.streams.runner.http_server import LOOPBACK, HttpServer, RefusedError, Request, Response
from headrace.streams.runner.otlp_receiver import JSON, PROTOBUF, OtlpReceiver


class GivenReward(BaseModel):
    """The body of a reward request. With a `reward_id`, sending it again is harmless."""

    model_config = ConfigDict(extra="forbid")

    value: float = Field(allow_inf_nan=False, strict=True)
    name: Identifier = OUTCOME
    about: SequenceId | None = None
    reward_id: UuidV7 | None = None


@dataclass
class _Open:
    attempt: Attempt
    receiver: OtlpReceiver
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    reward_ids: dict[str, int] = field(default_factory=dict)
    """Sequence ids by reward id."""


class AttemptServer:
    """An async context manager. Attempts are opened and closed from any thread."""

    def __init__(self) -> None:
        self._http = HttpServer(self._handle)
        self._open: dict[str, _Open] = {}

    @property
    def otlp_protocol(self) -> str:
        """The best that is understood here."""
        return "http/protobuf" if otlp_receiver.reads_protobuf() else "http/json"

    def url_of(self, attempt: Attempt) -> str:
        return f"http://{LOOPBACK}:{self._http.port}/a/{attempt.attempt_id}"

    @contextmanager
    def open(self, attempt: Attempt) -> Iterator[None]:
        """Take events for the attempt within."""
        self._open[attempt.attempt_id] = _Open(attempt, OtlpReceiver(attempt))
        try:
            yield
        finally:
            del self._open[attempt.attempt_id]

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def _handle(self, request: Request) -> Response:
        empty, letter, attempt_id, *rest = [*request.path.split("/", 3), "", "", ""][:4]
        what = rest[0] if rest else ""
        if empty or letter != "a" or what not in {"rewards", "v1/traces"}:
            raise RefusedError(404, "there are /a/{attempt_id}/rewards and /a/{attempt_id}/v1/traces")
        if request.method != "POST":
            raise RefusedError(405, "POST is expected")
        opened = self._open.get(attempt_id)
        if opened is None:
            raise RefusedError(404, "no attempt of this id runs here")
        try:
            async with opened.turn:
                handle = self._reward if what == "rewards" else self._traces
                response = await handle(opened, request)
                await opened.attempt.acknowledged()
        except AttemptClosedError as error:
            raise RefusedError(410, str(error)) from error
        failure = opened.attempt.failure
        return _unavailable(failure) if failure else response

    async def _reward(self, opened: _Open, request: Request) -> Response:
        try:
            given = GivenReward.model_validate(parse(decode(request.body)))
            known = opened.reward_ids.get(given.reward_id or "")
            sequence_id = known or opened.attempt.emit_reward(
                given.value, given.name, given.about, reward_id=given.reward_id
            )
        except ValidationError as error:
            return _json(400, {"error": describe(error)})
        except (MalformedError, InvalidRewardError) as error:
            return _json(400, {"error": str(error)})
        except BadRecordError as error:
            return _json(422, {"error": str(error)})
        except AttemptClosedError:
            raise
        except HeadraceError as error:
            return _unavailable(str(error))
        if given.reward_id:
            opened.reward_ids[given.reward_id] = sequence_id
        return _json(200, {"sequence_id": sequence_id})

    async def _traces(self, opened: _Open, request: Request) -> Response:
        kind = request.content_type or JSON
        if kind not in {JSON, PROTOBUF} or (kind == PROTOBUF and not otlp_receiver.reads_protobuf()):
            raise RefusedError(415, f"traces come as {JSON}; as {PROTOBUF} with headrace[otel] installed")
        try:
            # Reading a large request takes a while, and the runner's loop has heartbeats to send.
            received = await asyncio.to_thread(opened.receiver.receive, request.body, kind)
        except MalformedError as error:
            return Response(400, kind, otlp_receiver.refusal(str(error), kind))
        except AttemptClosedError:
            raise
        except HeadraceError as error:
            return _unavailable(str(error))
        return Response(200, kind, otlp_receiver.answer(received, kind))


def _json(status: int, value: object) -> Response:
    return Response(status, JSON, json.dumps(value).encode())


def _unavailable(why: str) -> Response:
    """Exporters try again on this one."""
    return Response(503, JSON, json.dumps({"error": why, "message": why}).encode(), (("retry-after", "1"),))
