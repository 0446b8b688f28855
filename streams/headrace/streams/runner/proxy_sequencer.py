"""RemoteSequencer: ids from the proxy, which numbers the agent's model calls as well (G2).

Asked again is only what the proxy has not done: a request that did not reach it, or that it refused as too
much for now; and a close, which may be repeated. An id whose answer was lost is out, and nobody will account
for it: from then on the sequencer has failed, and so has the attempt, whatever its agent makes of it.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.schemas.records import AttemptTask
from headrace.schemas.records.base import SequenceId
from headrace.streams.runner.errors import AttemptClosedError, ProxyFailedError
from headrace.streams.runner.proxy_client import NOT_SENT, AttemptApi
from headrace.streams.runner.sequencer import Closed, Opened

AWAY = "the proxy can't be reached"
BUSY = "the proxy takes no more for now"
RESTARTED = "the proxy does not know the attempt any more: it was restarted"
CLOSED_EARLY = "the proxy closed the attempt before its end"
NO_ANSWER = "the proxy's answer was lost, and a sequence id with it"
NOT_UNDERSTOOD = "the proxy's answer is not understood: is it headrace's?"
LOST = "the proxy was lost before it had closed the attempt"

_BUSY_STATUS = frozenset({429, 503})
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long each is asked for again."""

    next_s: float = 5.0
    """Also how long the proxy may be silent at the end."""
    open_s: float = 30.0
    kafka_s: float = 24 * 3600.0
    """At the end, while the proxy says that Kafka has not everything yet."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _OpenAnswer(_Answer):
    path: str = Field(pattern="^/")
    token: str = Field(min_length=1, repr=False)


class _NextAnswer(_Answer):
    sequence_id: SequenceId


class _CloseAnswer(_Answer):
    last_sequence_id: int = Field(ge=0, strict=True)
    failure: str | None = None


class RemoteSequencer:
    """A Sequencer. `open` and `close` are for one event loop."""

    is_shared = True

    def __init__(self, api: AttemptApi, patience: Patience | None = None, *, agent: str = "") -> None:
        """`agent` is what the proxy names calls by that do not name their agent."""
        self._api = api
        self._patience = patience or Patience()
        self._agent = agent
        self._attempt_id = ""
        self._is_open = False
        self._may_be_open = False
        """The proxy could have opened it: it must hear of the end."""
        self._is_closing = threading.Event()
        self._lock = threading.Lock()
        self._last = 0
        self._failure: str | None = None

    @property
    def last(self) -> int:
        return self._last

    @property
    def failure(self) -> str | None:
        return self._failure

    # --- open ----------------------------------------------------------------------------------------

    async def open(self, task: AttemptTask, attempt_id: str) -> Opened:
        """ProxyFailedError when the proxy refuses, or is away or full for longer than the patience."""
        self._attempt_id = attempt_id
        body = {
            "rollout_id": task.rollout_id,
            "attempt_id": attempt_id,
            "attempt": task.attempt,
            "agent": self._agent,
        }
        waits = _Waits(self._patience.open_s)
        while True:
            self._may_be_open = True
            try:
                response = await self._api.open(body)
            except NOT_SENT:
                self._may_be_open, why, asked_s = False, AWAY, 0.0
            except httpx.HTTPError as error:
                raise ProxyFailedError(f"the proxy gave no answer: {type(error).__name__}") from error
            else:
                if response.status_code not in _BUSY_STATUS:
                    return self._opened(response)
                self._may_be_open, why, asked_s = False, BUSY, _retry_after_s(response)
            pause_s = waits.next_s(asked_s)
            if pause_s is None:
                raise ProxyFailedError(f"{why}; asked for {self._patience.open_s:g} s")
            await asyncio.sleep(pause_s)

    def _opened(self, response: httpx.Response) -> Opened:
        status = response.status_code
        if status != httpx.codes.CREATED:
            self._may_be_open = status == httpx.codes.CONFLICT or status >= 500
            raise ProxyFailedError(_refusal(status))
        try:
            answer = _OpenAnswer.model_validate_json(response.content)
        except ValidationError as error:
            raise ProxyFailedError(NOT_UNDERSTOOD) from error
        self._is_open = True
        return Opened(f"{self._api.url}{answer.path}/v1", answer.token)

    # --- next ----------------------------------------------------------------------------------------

    def next(self) -> int:
        """Blocks for a request, at worst for the patience."""
        waits = _Waits(self._patience.next_s)
        while True:
            if self._failure is not None:
                raise ProxyFailedError(self._failure)
            try:
                response = self._api.next(self._attempt_id)
            except NOT_SENT:
                why, asked_s = AWAY, 0.0
            except httpx.HTTPError as error:
                raise self._fail(NO_ANSWER) from error
            else:
                if response.status_code not in _BUSY_STATUS:
                    return self._handed_out(response)
                why, asked_s = BUSY, _retry_after_s(response)
            pause_s = waits.next_s(asked_s)
            if pause_s is None:
                raise self._fail(why)
            if self._is_closing.wait(pause_s):
                raise self._closed_error()

    def _handed_out(self, response: httpx.Response) -> int:
        status = response.status_code
        if status == httpx.codes.GONE and self._is_closing.is_set():
            raise self._closed_error()
        if status == httpx.codes.GONE:
            raise self._fail(CLOSED_EARLY)
        if status == httpx.codes.NOT_FOUND:
            raise self._fail(RESTARTED)
        if status != httpx.codes.OK:
            raise self._fail(_refusal(status))
        try:
            sequence_id = _NextAnswer.model_validate_json(response.content).sequence_id
        except ValidationError as error:
            raise self._fail(NO_ANSWER) from error
        with self._lock:
            self._last = max(self._last, sequence_id)
        return sequence_id

    def _fail(self, why: str) -> ProxyFailedError:
        return ProxyFailedError(self._noted(why))

    def _noted(self, why: str) -> str:
        with self._lock:
            is_first = self._failure is None
            self._failure = self._failure or why
        if is_first:
            log.warning("proxy failed an attempt", attempt_id=self._attempt_id, why=why)
        return why

    def _closed_error(self) -> AttemptClosedError:
        return AttemptClosedError(f"attempt {self._attempt_id} has ended")

    # --- close ---------------------------------------------------------------------------------------

    async def close(self) -> Closed:
        """An attempt that was never open has handed out nothing."""
        self._is_closing.set()
        if self._is_open:
            return await self._close()
        if self._may_be_open:
            # Nobody has its token. It is told once; a proxy that does not hear it forgets it in time.
            try:
                await self._api.close(self._attempt_id)
            except httpx.HTTPError as error:
                log.info("attempt not closed", attempt_id=self._attempt_id, error=type(error).__name__)
        return Closed(0)

    async def _close(self) -> Closed:
        silent, busy = _Waits(self._patience.next_s), _Waits(self._patience.kafka_s)
        while True:
            waits, asked_s = silent, 0.0
            try:
                response = await self._api.close(self._attempt_id)
            except httpx.HTTPError:
                # Closing again gives the same.
                why = LOST
            else:
                status, why = response.status_code, _refusal(response.status_code)
                if status in _BUSY_STATUS:
                    waits, asked_s = busy, _retry_after_s(response)
                    silent = _Waits(self._patience.next_s)
                elif status < 500:
                    return self._ended(response)
            pause_s = waits.next_s(asked_s)
            if pause_s is None:
                return Closed(None, self._noted(why))
            await asyncio.sleep(pause_s)

    def _ended(self, response: httpx.Response) -> Closed:
        status = response.status_code
        if status == httpx.codes.OK:
            try:
                answer = _CloseAnswer.model_validate_json(response.content)
            except ValidationError:
                return Closed(None, self._noted(NOT_UNDERSTOOD))
            return Closed(answer.last_sequence_id, answer.failure)
        why = RESTARTED if status == httpx.codes.NOT_FOUND else _refusal(status)
        return Closed(None, self._noted(why))


class _Waits:
    """Pauses that grow, within a limit from the start."""

    def __init__(self, limit_s: float) -> None:
        self._ends = time.monotonic() + limit_s
        self._pauses: Iterator[float] = _growing()

    def next_s(self, at_least_s: float) -> float | None:
        """How long to wait before the next try; None if it would be past the limit."""
        pause_s = max(next(self._pauses), at_least_s)
        return pause_s if time.monotonic() + pause_s <= self._ends else None


def _growing() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _retry_after_s(response: httpx.Response) -> float:
    """As a number of seconds; a date is not expected of our own proxy."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdigit() else 0.0


def _refusal(status: int) -> str:
    if status in {401, 403}:
        return f"the proxy refuses the runner ({status}): is HEADRACE_RUNNER_PROXY_KEY right?"
    if status == httpx.codes.CONFLICT:
        return "the proxy has this attempt open already (409)"
    return f"the proxy answered {status}"
