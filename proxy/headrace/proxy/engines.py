"""Engines: which of them takes a call, and with which weights (G9). In one event loop, without I/O.

The version of a call is read when the call is admitted, and stays the engine's version until the call is
released (C15): whoever changes an engine's weights drains it first. An engine that drains takes no new calls,
so an update is not starved; calls that find no engine wait in order, so they are not starved either.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal, NamedTuple, Self

from headrace.proxy.problem import Problem, RefusedError
from headrace.schemas.errors import RetryableError

EngineState = Literal["starting", "serving", "updating", "out"]
Cut = Callable[[str], None]

NEW_WEIGHTS = "new_weights"
"""Why a call is cut that outlasts the drain."""

RAW_LOGPROBS = "raw_logprobs"
LOGPROBS_UNKNOWN = "logprobs_unknown"

_MAX_STICKY = 100_000
_RETRY_AFTER_S = 2


class DrainError(RetryableError):
    """Calls that were told to end and have not: the engine keeps its weights."""


class Version(NamedTuple):
    """Which weights: `name@number`."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @classmethod
    def of(cls, text: str) -> Self | None:
        """None for what is no version of ours."""
        name, at, number = text.rpartition("@")
        is_ours = bool(at and name and " " not in name and number.isascii() and number.isdecimal())
        return cls(name, int(number)) if is_ours else None


class Engine:
    """One server. Its state is changed by `Engines` alone."""

    def __init__(
        self, name: str, url: str, *, is_managed: bool | None = True, gives_token_ids: bool | None = None
    ) -> None:
        """`url` has no `/v1`. One that is not managed serves from the start, and has no version; None: it is
        not known yet (`Engines.know`).

        `gives_token_ids`: it knows vLLM's extension; by default the managed ones do.
        """
        self.name = name
        self.url = url
        self.is_managed = bool(is_managed)
        self.gives_token_ids = self.is_managed if gives_token_ids is None else gives_token_ids
        self.state: EngineState = "serving" if is_managed is False else "starting"
        self.version: Version | None = None
        self.gives_sampled_logprobs: bool | None = None
        """Its logprobs are of the distribution that it samples from; None where nobody knows."""
        self.base_models: frozenset[str] = frozenset()
        """Names of the weights that its version is of, and not of adapters to them; empty where unknown."""
        self.gap: float | None = None
        """The mean difference between its logprobs and the trainer's, for the probe of its version."""
        self.reason = ""
        """Why it is out."""
        self.attention = asyncio.Event()
        """Set when whoever manages it should look at it now."""
        self._is_suspect = False
        self._leases: set[Lease] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_calls(self) -> int:
        return len(self._leases)

    @property
    def distrust(self) -> str | None:
        """Why its logprobs can't be trained on, in a word."""
        if not self.gives_token_ids or self.gives_sampled_logprobs:
            return None
        return LOGPROBS_UNKNOWN if self.gives_sampled_logprobs is None else RAW_LOGPROBS

    def is_other_model(self, name: str) -> bool:
        """An answer of this model came from other weights than those of its version."""
        return bool(name and self.base_models) and name not in self.base_models

    def suspect(self, why: str = "a call failed to reach it") -> None:
        """It may have restarted: it serves again when it was looked at. Nothing if it is not managed."""
        if self.is_managed:
            self._is_suspect = True
            if self.state == "serving":
                self.state, self.reason = "out", why
            self.attention.set()

    def _begin(self, lease: "Lease") -> None:
        self._leases.add(lease)
        self._idle.clear()

    def _end(self, lease: "Lease") -> None:
        self._leases.discard(lease)
        if not self._leases:
            self._idle.set()

    async def _wait_idle(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return not self._leases


class Lease:
    """A call's place on an engine, from its admission to its end."""

    __slots__ = ("cut", "engine", "version")

    def __init__(self, engine: Engine, cut: Cut | None) -> None:
        self.engine = engine
        self.version = engine.version
        self.cut = cut


class _Waiter(NamedTuple):
    key: str
    cut: Cut | None
    lease: asyncio.Future[Lease]


class Engines:
    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        max_calls: int = 256,
        max_waiting: int = 1024,
        wait_s: float = 60.0,
    ) -> None:
        """`max_calls` is each engine's, at a time; `max_waiting` those that wait for any, each `wait_s`."""
        self._engines = tuple(engines)
        self._max_calls = max_calls
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._waiting: deque[_Waiter] = deque()
        self._homes: OrderedDict[str, Engine] = OrderedDict()
        self._num_homes: Counter[Engine] = Counter()

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines)

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def describe(self) -> list[dict[str, object]]:
        """For people who ask how it stands."""
        return [
            {
                "name": engine.name,
                "state": engine.state,
                "version": str(engine.version) if engine.version else None,
                "calls": engine.num_calls,
                "gap": engine.gap,
                "reason": engine.reason,
            }
            for engine in self._engines
        ]

    # --- calls ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def acquire(self, key: str, cut: Cut | None = None) -> AsyncIterator[Lease]:
        """A place on the engine that had the key's last call, else on the least busy one; waits for one.

        `cut` is called, from the loop, with the reason why the call must end now; a call without it is waited
        for. RefusedError: 429 where the engines, or the places to wait, are full; 503 where none serves.
        """
        engine = None if self._waiting else self._pick(key)
        lease = self._admit(engine, key, cut) if engine else await self._wait(key, cut)
        try:
            yield lease
        finally:
            self._release(lease)

    def forget(self, key: str) -> None:
        """No call of this key comes any more."""
        engine = self._homes.pop(key, None)
        if engine is not None:
            self._num_homes[engine] -= 1

    def _pick(self, key: str) -> Engine | None:
        free = [e for e in self._engines if e.state == "serving" and e.num_calls < self._max_calls]
        home = self._homes.get(key)
        if home is not None and home in free:
            return home
        return min(free, key=lambda e: (e.num_calls, self._num_homes[e]), default=None)

    def _admit(self, engine: Engine, key: str, cut: Cut | None) -> Lease:
        if self._homes.get(key) is not engine:
            self.forget(key)
            self._homes[key] = engine
            self._num_homes[engine] += 1
            if len(self._homes) > _MAX_STICKY:
                self.forget(next(iter(self._homes)))
        self._homes.move_to_end(key)
        lease = Lease(engine, cut)
        engine._begin(lease)  # noqa: SLF001  the two are one module's
        return lease

    def _release(self, lease: Lease) -> None:
        lease.engine._end(lease)  # noqa: SLF001
        self._admit_waiting()

    async def _wait(self, key: str, cut: Cut | None) -> Lease:
        if len(self._waiting) >= self._max_waiting:
            raise self._refusal()
        waiter = _Waiter(key, cut, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await asyncio.wait([waiter.lease], timeout=self._wait_s)
        except asyncio.CancelledError:
            if waiter.lease.done():
                self._release(waiter.lease.result())
            else:
                self._waiting.remove(waiter)
            raise
        if waiter.lease.done():
            return waiter.lease.result()
        self._waiting.remove(waiter)
        raise self._refusal()

    def _admit_waiting(self) -> None:
        """In the order in which they came: any of them can go to any engine."""
        while self._waiting and (engine := self._pick(self._waiting[0].key)):
            key, cut, lease = self._waiting.popleft()
            lease.set_result(self._admit(engine, key, cut))

    def _refusal(self) -> RefusedError:
        if any(engine.state == "serving" for engine in self._engines):
            return RefusedError(Problem(429, "every engine is busy", "engines_busy", _RETRY_AFTER_S))
        states = ", ".join(f"{engine.name} is {engine.state}" for engine in self._engines) or "there are none"
        return RefusedError(Problem(503, f"no engine is serving: {states}", "no_engine", _RETRY_AFTER_S))

    # --- weights -------------------------------------------------------------------------------------

    def serve(self, engine: Engine, version: Version | None) -> None:
        """It takes calls from now on, with that version."""
        if engine.num_calls and version != engine.version:
            raise AssertionError(f"{engine.name} has calls of {engine.version}, and is to serve {version}")
        engine.state, engine.version, engine.reason = "serving", version, ""
        engine._is_suspect = False  # noqa: SLF001
        self._admit_waiting()

    def know(self, engine: Engine, *, is_managed: bool, gives_token_ids: bool) -> None:
        """What it is. It does not serve yet."""
        engine.is_managed, engine.gives_token_ids = is_managed, gives_token_ids
        engine.state, engine.reason = "starting", ""

    def take_out(self, engine: Engine, reason: str) -> None:
        """It takes no calls; those it has go on."""
        engine.state, engine.reason = "out", reason

    async def drain(self, engine: Engine, *, drain_s: float, cut_s: float = 10.0) -> None:
        """Let no call in and wait for those that run; past `drain_s` they are cut, and have `cut_s` to end.

        It is `updating` then, without calls. DrainError if some are left: it is as it was before.
        """
        before = engine.state, engine.reason
        engine.state = "updating"
        if await engine._wait_idle(drain_s):  # noqa: SLF001
            return
        for lease in tuple(engine._leases):  # noqa: SLF001
            if lease.cut is not None:
                lease.cut(NEW_WEIGHTS)
        if await engine._wait_idle(cut_s):  # noqa: SLF001
            return
        failure = DrainError(
            f"{engine.name} has {engine.num_calls} calls that did not end when they were cut"
        )
        engine.state, engine.reason = before
        if engine._is_suspect and engine.state == "serving":  # noqa: SLF001
            engine.suspect()
        self._admit_waiting()
        raise failure
