"""ModelCall: one call of a model, from its request to an answer that is recorded before it is whole (G1).

The order of things: an id for each choice (G2), an engine and the version it serves (G9), the answer,
captured as it comes, the spans acknowledged by Kafka, and only then the answer's last bytes to the client. A
stream's chunks are passed on as they come, but for a choice's last one and what follows it. Whatever goes
wrong, each id becomes a span that says so, or is void.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import orjson
import structlog

from headrace.proxy import ask, endings
from headrace.proxy.asgi import EVENT_STREAM, Receive, Send, send_piece, send_problem, send_start, send_whole
from headrace.proxy.ask import MAX_CHOICES
from headrace.proxy.attempts import OpenAttempt
from headrace.proxy.capture import Capture
from headrace.proxy.dialect import Dialect, Exchange, Json
from headrace.proxy.endings import CLIENT_GONE, CLIENT_STALLED
from headrace.proxy.engines import Engine, Engines, Lease
from headrace.proxy.metrics import ProxyMetrics
from headrace.proxy.problem import TOO_DEEP, Problem, RefusedError, bad_request
from headrace.proxy.recorder import Recorder, UnrecordedError
from headrace.proxy.settings import ProxySettings
from headrace.proxy.spans import Call, num_spans, spans_of
from headrace.proxy.sse import EventReader, EventTooLargeError
from headrace.proxy.upstream import Upstream, UpstreamFailedError, UpstreamGoneError, UpstreamTimeoutError
from headrace.proxy.weights import WeightsFollower
from headrace.schemas.records import now

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


class StalledError(Exception):
    """The client takes nothing of its answer."""


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
        abort: Callable[[], object] = lambda: None,
    ) -> None:
        """`abort` ends the client's connection, whatever waits to be sent on it."""
        self._parts = parts
        self._attempt = attempt
        self._dialect = dialect
        self._exchange = exchange
        self._call = call
        self._send = send
        self._abort = abort
        self._capture = Capture(dialect.operation)
        self._ids: list[int] = []
        """Those that are not accounted for yet."""
        self._task: asyncio.Task[None] | None = None
        self._is_generating = False
        self._cut_why: str | None = None
        self._problem: Problem | None = None
        self._engine: Engine | None = None
        self._whole: tuple[int, bytes] | None = None
        """An answer in one piece, or the upstream's own error, as the client gets it."""
        self._headers: Mapping[str, str] = {}
        """What of the upstream's the client gets."""
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
            self._hang_up()
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
        except RefusedError:
            if not self._void_unused():
                raise RefusedError(endings.NOT_RECORDED) from None
            raise
        finally:
            if not self._void_unused():
                self._withhold()
            attempt.end(self)

    def _void_unused(self) -> bool:
        """Whether Kafka takes the voids of all ids that came to nothing; no call is made until it does."""
        ids, self._ids, is_taken = self._ids, [], True
        for sequence_id in ids:
            why = self._attempt.events.void(sequence_id)
            if why is not None:
                is_taken = False
                self._parts.recorder.void_later(
                    self._attempt.attempt_id, sequence_id, self._attempt.events, why
                )
        self._parts.metrics.voids.inc(len(ids))
        return is_taken

    def _withhold(self) -> None:
        self._whole = None
        self._call.problem, self._problem = "not_recorded", endings.NOT_RECORDED

    def _hang_up(self) -> None:
        log.warning("a client does not take its answer", attempt_id=self._attempt.attempt_id)
        self._abort()

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
            self._fail(self._cut_why, endings.problem_of_cut(self._cut_why))
        except StalledError:
            self._fail(CLIENT_STALLED, endings.STALLED_PROBLEM)
            self._hang_up()
        except (TimeoutError, UpstreamTimeoutError):
            self._fail("upstream_timeout", Problem(504, "the model took too long", "upstream_timeout"))
        except (UpstreamFailedError, EventTooLargeError) as error:
            self._fail("upstream_failed", Problem(502, str(error), "upstream_failed"))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            # As a type alone: its message may quote the answer.
            log.error("answer not understood", dialect=self._dialect.name, error=type(error).__name__)  # noqa: TRY400
            self._fail("upstream_failed", endings.NOT_UNDERSTOOD)
        finally:
            self._is_generating = False
        if any(choice.finish_reason == endings.ABORTED for choice in self._capture.choices.values()):
            self._fail(self._cut_why or "aborted", endings.ABORTED_PROBLEM)

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
        self._engine = lease.engine
        call.engine = lease.engine.name
        call.distrust = lease.engine.distrust
        if lease.version is not None:
            call.resource_name, call.resource_version = lease.version
        headers = upstream.headers(
            request_id=f"{self._attempt.attempt_id}-{self._ids[0]}", traceparent=traceparent
        )
        url = lease.engine.url + self._dialect.upstream_path
        try:
            body = orjson.dumps(exchange.request)
        except orjson.JSONEncodeError:
            raise bad_request(TOO_DEEP) from None
        try:
            async with upstream.post(url, body, headers, is_stream=exchange.is_stream) as response:
                call.status_code = response.status
                lower = {name.lower(): value for name, value in response.headers.items() if value.isascii()}
                self._headers = self._dialect.headers(lower)
                if response.status != 200:
                    self._take_error(response.status, await response.read())
                elif exchange.is_stream:
                    await self._pass_on(response)
                else:
                    self._take_whole(await response.read())
        except UpstreamGoneError:
            lease.engine.suspect()
            raise

    def _take_error(self, status: int, body: bytes) -> None:
        self._whole = status, self._dialect.upstream_error(status, body)
        self._call.problem = f"upstream_error_{status}"
        self._call.answer_body = body

    def _take_whole(self, body: bytes) -> None:
        self._call.answer_body = body
        completion = _json_of(body)
        self._capture.take(completion)
        ask.strip(completion, self._asked, is_chunk=False)
        self._whole = 200, self._exchange.answer(completion)

    # --- streaming -----------------------------------------------------------------------------------

    async def _pass_on(self, response: aiohttp.ClientResponse) -> None:
        await self._start_stream()
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
                    await self._send_on(out)
        if not is_done and not self._capture.is_finished(self._call.num_choices):
            raise UpstreamFailedError("the upstream ended its stream early")

    async def _send_on(self, out: bytes) -> None:
        try:
            async with asyncio.timeout(self._parts.settings.send_timeout_s):
                await send_piece(self._send, out, more=True)
        except TimeoutError:
            raise StalledError from None

    async def _start_stream(self) -> None:
        known = {"cache-control": "no-cache", "x-accel-buffering": "no", **self._headers}
        await send_start(self._send, 200, EVENT_STREAM, known)
        self._is_started = True

    def _take_chunk(self, chunk: Json) -> bytes:
        """What of it the client gets now."""
        if "error" in chunk and "choices" not in chunk:
            self._call.error = chunk["error"]
            words = endings.words_of(chunk["error"])
            raise UpstreamFailedError(": ".join(filter(None, (_FAILED_MIDWAY, words))))
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
        if self._engine is not None and self._engine.is_other_model(capture.model):
            call.is_other_model = call.resource_version is not None
        used = self._ids[: num_spans(capture)]
        spans = spans_of(call, capture, used, now())
        for sequence_id in used:
            events.give(sequence_id)
        self._ids = self._ids[len(used) :]
        began = asyncio.get_running_loop().time()
        try:
            await self._parts.recorder.record(spans, events)
        except UnrecordedError:
            self._withhold()
        self._parts.metrics.record_seconds.observe(asyncio.get_running_loop().time() - began)
        for span in spans:
            if span.generation is not None:
                self._parts.metrics.count(span.generation)

    # --- the client's part ---------------------------------------------------------------------------

    async def _answer(self) -> None:
        if self._cut_why == CLIENT_GONE or self._call.problem == CLIENT_STALLED:
            return
        if self._problem is not None:
            await self._answer_problem(self._problem)
        elif self._whole is not None:
            status, body = self._whole
            await send_whole(self._send, status, body, self._headers)
        else:
            await self._answer_end()

    async def _answer_end(self) -> None:
        """Of a stream."""
        try:
            rest = b"".join(map(self._translated, self._held)) + self._exchange.finish()
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            log.error("answer not understood", dialect=self._dialect.name, error=type(error).__name__)  # noqa: TRY400
            await self._answer_problem(endings.NOT_UNDERSTOOD)
        else:
            await send_piece(self._send, rest, more=False)

    async def _answer_problem(self, problem: Problem) -> None:
        self._parts.metrics.refused.labels(problem.code).inc()
        if self._is_started:
            await send_piece(self._send, self._exchange.fail(problem), more=False)
        else:
            await send_problem(self._send, problem, self._dialect.error(problem))


_FAILED_MIDWAY = "the upstream failed in the middle of its answer"


def _json_of(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise UpstreamFailedError("the upstream's answer is no JSON") from None
    if not isinstance(value, dict):
        raise UpstreamFailedError("the upstream's answer is no JSON object")
    return value
