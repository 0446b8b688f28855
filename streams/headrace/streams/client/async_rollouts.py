"""AsyncClient: the client for asyncio programs; the loop never waits for Kafka."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from headrace.schemas.codec import Codec
from headrace.schemas.records import RolloutCommand, RolloutConfig, RolloutState
from headrace.schemas.records.rollout import Mode
from headrace.streams.client.rollout_watch import Watch
from headrace.streams.client.rollouts import (
    ANSWER_S,
    JSON,
    Client,
    EnqueuedRollout,
    RolloutRef,
    checked_ids,
    is_over,
    timed_out,
)
from headrace.streams.settings import KafkaSettings


class AsyncClient:
    """The verbs of `Client`, with its guarantees. Use as an async context manager, within one event loop."""

    def __init__(
        self, settings: KafkaSettings | None = None, *, codec: Codec | None = None, linger_ms: float = 5.0
    ) -> None:
        self._client = Client(settings, codec=codec, linger_ms=linger_ms)

    async def enqueue(
        self,
        tasks: Iterable[JSON],
        *,
        mode: Mode = "train",
        num_samples: int = 1,
        config: RolloutConfig | None = None,
        resources: Mapping[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        task_ids: Sequence[str] | None = None,
    ) -> list[EnqueuedRollout]:
        return await asyncio.to_thread(
            self._client.enqueue,
            tasks,
            mode=mode,
            num_samples=num_samples,
            config=config,
            resources=resources,
            metadata=metadata,
            task_ids=task_ids,
        )

    async def submit(self, commands: Sequence[RolloutCommand]) -> None:
        await asyncio.to_thread(self._client.submit, commands)

    async def cancel(self, rollouts: Iterable[RolloutRef]) -> None:
        await asyncio.to_thread(self._client.cancel, rollouts)

    async def status(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float = ANSWER_S
    ) -> dict[str, RolloutState | None]:
        return await asyncio.to_thread(self._client.status, rollouts, timeout_s=timeout_s)

    async def wait(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> AsyncGenerator[RolloutState, None]:
        async with contextlib.aclosing(self.follow(rollouts, timeout_s=timeout_s)) as states:
            async for state in states:
                if state.is_final:
                    yield state

    async def follow(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> AsyncGenerator[RolloutState, None]:
        rollout_ids = checked_ids(rollouts)
        if not rollout_ids:
            return
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        watch = await self._watch(rollout_ids, _from_a_thread(loop, changed))
        deadline = None if timeout_s is None else loop.time() + timeout_s
        try:
            while True:
                changed.clear()
                # Asked first: what comes in between is in what is drained.
                over = is_over(watch)
                for state in watch.drain():
                    yield state
                if over:
                    return
                try:
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()
                except TimeoutError:
                    raise timed_out(watch, timeout_s or 0.0) from None
        finally:
            self._client.log.release(watch)

    async def wait_all(
        self, rollouts: Iterable[RolloutRef], *, timeout_s: float | None = None
    ) -> dict[str, RolloutState]:
        rollout_ids = checked_ids(rollouts)
        final = {state.rollout_id: state async for state in self.wait(rollout_ids, timeout_s=timeout_s)}
        return {rollout_id: final[rollout_id] for rollout_id in rollout_ids}

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _watch(self, rollout_ids: Sequence[str], notify: Callable[[], None]) -> Watch:
        """A watch; where the caller is cancelled before it has it, it is released all the same."""
        watching = asyncio.ensure_future(asyncio.to_thread(self._client.log.watch, rollout_ids, notify))
        try:
            return await asyncio.shield(watching)
        except asyncio.CancelledError:
            watching.add_done_callback(self._release_unused)
            raise

    def _release_unused(self, watching: "asyncio.Future[Watch]") -> None:
        if not watching.cancelled() and watching.exception() is None:
            self._client.log.release(watching.result())


def _from_a_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    """Set the event from the log's thread; the loop is woken once, however much comes."""

    def notify() -> None:
        if not event.is_set():
            # Whoever waited on a loop that is closed waits no more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    return notify
