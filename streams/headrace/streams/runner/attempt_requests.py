"""AttemptRequests: rewards and traces of one attempt over HTTP, apart from the server that takes them in.

A reward is `{"value": 0.5}` with `name`, `about` and `reward_id` if wanted; traces are OTLP as JSON or
protobuf. The answer comes when Kafka has acknowledged what was sent (G1).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.errors import BadRecordError, HeadraceError
from headrace.schemas.records import OUTCOME
from headrace.schemas.records.base import Identifier, SequenceId, UuidV7
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.strict_json import decode, parse
from headrace.streams.runner import otlp_receiver
from headrace.streams.runner.attempt_events import AttemptEvents
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError
from headrace.streams.runner.http_message import Response, media_type
from headrace.streams.runner.otlp_receiver import JSON, PROTOBUF, OtlpReceiver

_UNAVAILABLE = 503


class GivenReward(BaseModel):
    """The body of a reward request. With a `reward_id`, sending it again is harmless."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float = Field(allow_inf_nan=False, strict=True)
    name: Identifier = OUTCOME
    about: SequenceId | None = None
    reward_id: UuidV7 | None = None


class AttemptRequests:
    """Used in one event loop, that of the events' outbox; requests are taken one after another.

    Every request gets an answer: 200, 400, 415 or 422; 410 after the attempt's end; 503 where Kafka does not
    take the events.
    """

    def __init__(self, events: AttemptEvents) -> None:
        self._events = events
        self._receiver = OtlpReceiver(events)
        self._turn = asyncio.Lock()
        self._reward_ids: dict[str, int] = {}
        """Sequence ids by reward id, of what Kafka has."""
        self._new_reward_ids: dict[str, int] = {}
        """Of the request in hand."""
        self._lost_traces: set[int] = set()
        """Hashes of bodies whose spans Kafka has not all: the receiver takes each span once."""

    async def reward(self, body: bytes) -> Response:
        """Of `POST …/rewards`."""
        return await self._settle(lambda: self._reward(body))

    async def traces(self, body: bytes, content_type: str) -> Response:
        """Of `POST …/v1/traces`, the body unpacked. The content type as its header has it, "" for JSON."""
        if self._lost_traces and hash(body) in self._lost_traces:
            return _unavailable("spans of this request were lost, and the attempt has failed")
        response = await self._settle(lambda: self._traces(body, media_type(content_type) or JSON))
        if response.status == _UNAVAILABLE:
            self._lost_traces.add(hash(body))
        return response

    async def _settle(self, work: Callable[[], Awaitable[Response]]) -> Response:
        try:
            async with self._turn:
                # What was lost before is no fault of this request.
                before = self._events.failure
                self._new_reward_ids.clear()
                response = await work()
                await self._events.acknowledged()
                failure = self._events.failure
                if failure is None or failure == before:
                    self._reward_ids |= self._new_reward_ids
                    return response
        except AttemptClosedError as error:
            return _problem(410, str(error))
        return _unavailable(failure)

    async def _reward(self, body: bytes) -> Response:
        try:
            given = GivenReward.model_validate(parse(decode(body)))
            sequence_id = self._reward_ids.get(given.reward_id or "")
            if sequence_id is None:
                # In a thread: it may have to wait for a sequence id, or for room on the way to Kafka.
                sequence_id = await asyncio.to_thread(
                    self._events.emit_reward, given.value, given.name, given.about, reward_id=given.reward_id
                )
        except ValidationError as error:
            return _problem(400, describe(error))
        except (MalformedError, InvalidRewardError) as error:
            return _problem(400, str(error))
        except BadRecordError as error:
            return _problem(422, str(error))
        except AttemptClosedError:
            raise
        except HeadraceError as error:
            return _unavailable(str(error))
        if given.reward_id:
            self._new_reward_ids[given.reward_id] = sequence_id
        return Response(200, JSON, json.dumps({"sequence_id": sequence_id}).encode())

    async def _traces(self, body: bytes, kind: str) -> Response:
        if kind not in {JSON, PROTOBUF} or (kind == PROTOBUF and not otlp_receiver.reads_protobuf()):
            return _problem(415, f"traces come as {JSON}; as {PROTOBUF} with headrace[otel] installed")
        try:
            # Reading a large request takes a while, and the loop has others to serve.
            received = await asyncio.to_thread(self._receiver.receive, body, kind)
        except MalformedError as error:
            return Response(400, kind, otlp_receiver.refusal(str(error), kind))
        except AttemptClosedError:
            raise
        except HeadraceError as error:
            return _unavailable(str(error))
        return Response(200, kind, otlp_receiver.answer(received, kind))


def _problem(status: int, why: str) -> Response:
    return Response(status, JSON, json.dumps({"error": why}).encode())


def _unavailable(why: str) -> Response:
    """Exporters try again on this one."""
    return Response(
        _UNAVAILABLE, JSON, json.dumps({"error": why, "message": why}).encode(), (("retry-after", "1"),)
    )
