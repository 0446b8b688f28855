"""ModelCall: one call of a model, from its request to an answer that is recorded before it is whole (G1).

The order of things: an id for each choice (G2), an engine and the version it serves (G9), the answer,
captured as it comes, the spans acknowledged by Kafka, and only then the answer's last bytes to the client. A
stream's chunks are passed on as they come, but for a choice's last one and what follows it. Whatever goes
wrong, each id becomes a span that says so, or is void.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import orjson
import structlog

from headrace.proxy import ask
from headrace.proxy.asgi import EVENT_STREAM, Receive, Send, send_piece, send_problem, send_start, send_whole
from headrace.proxy.ask import MAX_CHOICES
from headrace.proxy.attempts import OpenAttempt
from headrace.proxy.capture import Capture
from headrace.proxy.dialect import Dialect, Exchange, Json
from headrace.proxy.engines import Engines, Lease
from headrace.proxy.metrics import ProxyMetrics
from headrace.proxy.problem import Problem
from headrace.proxy.recorder import Recorder, UnrecordedError
from headrace.proxy.settings import ProxySettings
from headrace.proxy.spans import Call, num_spans, spans_of
from headrace.proxy.sse import EventReader, EventTooLargeError
from headrace.proxy.upstream import Upstream, UpstreamFailedError, UpstreamGoneError, UpstreamTimeoutError
from headrace.proxy.weights import WeightsFollower
from headrace.schemas.records import now

ABORTED = "abort"
"""vLLM's finish_reason for a call that was ended by somebody else."""
CLIENT_GONE = "client_disconnected"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """What calls share."""

    settings: ProxySettings
    engines: Engines
    upstream: Upstream
    recorder: Recorder
    metrics: ProxyMetrics
    weights: WeightsFollower | None = None
    """Who keeps the engines at the newest version."""


class ModelCall:
    """Runs once, in one task."""

    def __init__(
        self,
        parts: Parts,
        attempt: OpenAttempt,
        dialect: Dialect,
        exchange: Exchange,
        call: Call,
        *,
        send: Send,
    ) -> None:
        self._parts = parts
        self._attempt = attempt
        self._dialect = dialect
        self._exchange = exchange
        self._call = call
        self._send = send
        self._capture = Capture(dialect.operation)
        self._ids: list[int] = []
        """Those that are not accounted for yet."""
        self._task: asyncio.Task[None] | None = None
        self._is_generating = False
        self._cut_why: str | None = None
        self._problem: Problem | None = None
        self._failed_with: tuple[int, bytes, Mapping[str, str]] | None = None
        """The upstream's own error: status, body, headers."""
        self._completion: Json | None = None
        self._asked = ask.Asked(token_ids=False, logprobs=False, usage=False)
        self._held: list[Json] = []
        self._ended: set[int] = set()
        self._is_started = False
        """The client has the head of the answer."""

    def cut(self, why: str) -> None:
        """End the call early, from the same loop. No effect on one whose answer is whole already."""
        if self._cut_why is None:
            self._cut_why = why
            if self._is_generating and self._task is not None:
                self._task.cancel()

    async def run(self, receive: Receive, traceparent: str) -> None:
        """Answer the request. RefusedError, with nothing sent, if no engine takes it; AttemptClosedError."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._attempt.begin(self)
        watcher = loop.create_task(self._watch(receive))
        outcome = "error"
        try:
            await self._make(traceparent)
            outcome = self._call.problem or "ok"
            async with asyncio.timeout(self._parts.settings.send_timeout_s):
                await self._answer()
        except TimeoutError:
            # It has stopped reading, and the server closes a connection whose answer does not end.
            log.warning("a client does not take its answer", attempt_id=self._attempt.attempt_id)
        finally:
            watcher.cancel()
            self._parts.metrics.calls.labels(self._dialect.name, outcome).inc()
            self._parts.metrics.call_seconds.labels(self._dialect.name).observe(loop.time() - began)

    async def _make(self, traceparent: str) -> None:
        """All that the attempt waits for at its end: the client's own pace is not part of it."""
        attempt = self._attempt
        try:
            # What a request claims to be for is not believed: further choices take their ids as they come.
            num_ids = min(self._call.num_choices, MAX_CHOICES)
            self._ids = [attempt.events.take() for _ in range(num_ids)]
            await self._generate(traceparent)
            await self._record()
        finally:
            for sequence_id in self._ids:
                attempt.events.void(sequence_id)
            self._parts.metrics.voids.inc(len(self._ids))
            attempt.end(self)

    async def _watch(self, receive: Receive) -> None:
        message = await receive()
        while message["type"] != "http.disconnect":
            message = await receive()
        self.cut(CLIENT_GONE)

    # --- the upstream's part -------------------------------------------------------------------------

    async def _generate(self, traceparent: str) -> None:
        """Take the answer in, as far as it comes; what was wrong with it is in `problem`, in a word."""
        settings = self._parts.settings
        try:
            self._is_generating = True
            if self._cut_why is not None:
                raise asyncio.CancelledError  # noqa: TRY301  the same end as a moment later
            async with self._parts.engines.acquire(self._attempt.attempt_id, self.cut) as lease:
                async with asyncio.timeout(settings.call_timeout_s):
                    await self._ask(lease, traceparent)
        except asyncio.CancelledError:
            if self._cut_why is None or self._task is None:
                raise
            self._task.uncancel()
            self._fail(self._cut_why, _CUTS.get(self._cut_why, _ABORTED))
        except (TimeoutError, UpstreamTimeoutError):
            self._fail("upstream_timeout", Problem(504, "the model took too long", "upstream_timeout"))
        except (UpstreamFailedError, EventTooLargeError) as error:
            self._fail("upstream_failed", Problem(502, str(error), "upstream_failed"))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # As a type alone: its message may quote the answer.
            log.error("answer not understood", dialect=self._dialect.name, error=type(error).__name__)  # noqa: TRY400
            self._fail("upstream_failed", _NOT_UNDERSTOOD)
        finally:
            self._is_generating = False
        if any(choice.finish_reason == ABORTED for choice in self._capture.choices.values()):
            self._fail(self._cut_why or "aborted", _ABORTED)

    def _fail(self, why: str, problem: Problem) -> None:
        if self._call.problem is None:
            self._call.problem = why
            self._problem = problem

    async def _ask(self, lease: Lease, traceparent: str) -> None:
        call, exchange, upstream = self._call, self._exchange, self._parts.upstream
        self._asked = ask.ask(
            exchange.request,
            self._dialect.operation,
            is_stream=exchange.is_stream,
            with_token_ids=lease.engine.gives_token_ids,
        )
        call.engine = lease.engine.name
        call.has_raw_logprobs = lease.engine.gives_sampled_logprobs is False
        if lease.version is not None:
            call.resource_name, call.resource_version = lease.version
        headers = upstream.headers(
            request_id=f"{self._attempt.attempt_id}-{self._ids[0]}", traceparent=traceparent
        )
        url, body = lease.engine.url + self._dialect.upstream_path, orjson.dumps(exchange.request)
        try:
            async with upstream.post(url, body, headers) as response:
                call.status_code = response.status
                if response.status != 200:
                    await self._take_error(response)
                elif exchange.is_stream:
                    await self._pass_on(response)
                else:
                    self._take_whole(await response.read())
        except UpstreamGoneError:
            lease.engine.suspect()
            raise

    async def _take_error(self, response: aiohttp.ClientResponse) -> None:
        body = await response.read()
        headers = {name: response.headers[name] for name in ("retry-after",) if name in response.headers}
        self._failed_with = response.status, body, headers
        self._call.problem = f"upstream_error_{response.status}"
        self._call.error_body = body.decode(errors="replace")

    def _take_whole(self, body: bytes) -> None:
        completion = _json_of(body)
        self._capture.take(completion)
        self._completion = completion

    # --- streaming -----------------------------------------------------------------------------------

    async def _pass_on(self, response: aiohttp.ClientResponse) -> None:
        await self._start_stream(response.headers)
        reader, is_done = EventReader(), False
        async for piece in response.content.iter_any():
            out = b""
            try:
                for data in reader.feed(piece):
                    if data == b"[DONE]":
                        is_done = True
                    else:
                        out += self._take_chunk(_json_of(data))
            finally:
                if out:
                    await send_piece(self._send, out, more=True)
        if not is_done and not self._capture.is_finished(self._call.num_choices):
            raise UpstreamFailedError("the upstream ended its stream early")

    async def _start_stream(self, headers: Mapping[str, str]) -> None:
        lower = {name.lower(): value for name, value in headers.items()}
        known = {"cache-control": "no-cache", "x-accel-buffering": "no", **self._dialect.headers(lower)}
        await send_start(self._send, 200, EVENT_STREAM, known)
        self._is_started = True

    def _take_chunk(self, chunk: Json) -> bytes:
        """What of it the client gets now."""
        if "error" in chunk and "choices" not in chunk:
            raise UpstreamFailedError("the upstream failed in the middle of its answer")
        if self._call.first_chunk is None:
            self._call.first_chunk = now()
        self._capture.take(chunk)
        if self._is_to_wait(chunk):
            self._held.append(chunk)
            return b""
        return self._translated(chunk)

    def _is_to_wait(self, chunk: Json) -> bool:
        """A choice's last chunk and all that comes after it: nobody is to act on what is not recorded."""
        choices = chunk.get("choices")
        if not choices:
            return bool(self._ended)
        is_last = False
        for choice in choices:
            index = choice.get("index")
            if choice.get("finish_reason") is not None:
                self._ended.add(index)
            is_last = is_last or index in self._ended
        return is_last

    def _translated(self, chunk: Json) -> bytes:
        return self._exchange.feed(chunk) if ask.strip(chunk, self._asked, is_chunk=True) else b""

    # --- the record ----------------------------------------------------------------------------------

    async def _record(self) -> None:
        call, capture, events = self._call, self._capture, self._attempt.events
        while len(self._ids) < num_spans(capture):
            self._ids.append(events.take())
        used = self._ids[: num_spans(capture)]
        spans = spans_of(call, capture, used, now())
        for sequence_id in used:
            events.give(sequence_id)
        self._ids = self._ids[len(used) :]
        began = asyncio.get_running_loop().time()
        try:
            await self._parts.recorder.record(spans, events)
        except UnrecordedError:
            self._failed_with = None
            call.problem = "not_recorded"
            self._problem = Problem(
                503, "Kafka did not take the record of this call, so its answer is withheld",
                "kafka_unavailable", 2,
            )  # fmt: skip
        self._parts.metrics.record_seconds.observe(asyncio.get_running_loop().time() - began)
        for span in spans:
            if span.generation is not None:
                self._parts.metrics.count(span.generation)

    # --- the client's part ---------------------------------------------------------------------------

    async def _answer(self) -> None:
        if self._cut_why == CLIENT_GONE:
            return
        if self._problem is not None:
            await self._answer_problem(self._problem)
        elif self._failed_with is not None:
            status, body, headers = self._failed_with
            await send_whole(self._send, status, self._dialect.upstream_error(status, body), headers)
        elif self._completion is not None:
            ask.strip(self._completion, self._asked, is_chunk=False)
            await send_whole(self._send, 200, self._exchange.answer(self._completion))
        else:
            held = b"".join(map(self._translated, self._held))
            await send_piece(self._send, held + self._exchange.finish(), more=False)

    async def _answer_problem(self, problem: Problem) -> None:
        self._parts.metrics.refused.labels(problem.code).inc()
        if self._is_started:
            await send_piece(self._send, self._exchange.fail(problem), more=False)
        else:
            await send_problem(self._send, problem, self._dialect.error(problem))


_ABORTED = Problem(503, "the engine took new weights and could not finish this call; try again", "aborted", 1)
_NOT_UNDERSTOOD = Problem(502, "the upstream's answer is not as the API has them", "upstream_failed")
_CUTS = {
    CLIENT_GONE: Problem(499, "the client has gone", CLIENT_GONE),
    "attempt_closed": Problem(410, "this attempt has ended", "attempt_ended"),
}


def _json_of(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UpstreamFailedError("the upstream's answer is no JSON") from None
    if not isinstance(value, dict):
        raise UpstreamFailedError("the upstream's answer is no JSON object")
    return value
