"""Runner: tasks in, lives out; many at once in one event loop.

Agents run elsewhere (an Executor), so that whatever they do, heartbeats, deadlines and cancellations go on.
"""

import asyncio
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Protocol

import structlog

from headrace.schemas.errors import HeadraceError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import AttemptTask, ResourceVersion
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_log import LoggedEvent
from headrace.streams.runner.errors import RunnerFailedError
from headrace.streams.runner.execution import Execution, Executor
from headrace.streams.runner.life import Life
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.metrics import RunnerMetrics
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.sequencer import LocalSequencer, Sequencer
from headrace.streams.runner.settings import RunnerSettings
from headrace.streams.runner.tasks import TakenTask

STOPPED = "the runner was stopped"
SUPERSEDED = "another runner was first to start this attempt"

_RESOURCE_S = 5.0
"""How far the resources that are known here may be behind the task that names them."""
_REMEMBERED = 50_000
"""Attempts that are known as started, here or elsewhere, or as ended: their task is not run again."""

log = structlog.get_logger(__name__)


class ResourceResolver(Protocol):
    """client.resources.ResourceStore."""

    def resolve(self, pinned: Mapping[str, int]) -> Mapping[str, ResourceVersion]:
        """The newest version of each name, or the pinned one; HeadraceError if that does not exist."""

    def wait_for(self, name: str, version: int, timeout_s: float) -> ResourceVersion:
        """Block until that version is there; HeadraceError if it does not come."""


class Runner:
    """Used in one event loop; `take`, `hear` and `fail` are to be posted there from other threads."""

    def __init__(
        self,
        settings: RunnerSettings,
        executor: Executor,
        outlet: Outlet,
        *,
        mailbox: Mailbox,
        resources: ResourceResolver,
        release: Callable[[], None],
        metrics: RunnerMetrics | None = None,
        new_sequencer: Callable[[], Sequencer] = LocalSequencer,
    ) -> None:
        """`release` says that a slot is free for another task."""
        self.runner_id = f"{socket.gethostname()}-{os.getpid()}-{uuid7()[-12:]}"
        self.runs_here: dict[bytes, Life] = {}
        """By rollout id, as keys of the log."""
        self.failure: HeadraceError | None = None
        self._settings = settings
        self._executor = executor
        self._outlet = outlet
        self._mailbox = mailbox
        self._resources = resources
        self._release = release
        self._metrics = metrics or RunnerMetrics()
        self._new_sequencer = new_sequencer
        self._known: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._abandoned: set[Execution] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False
        self._draining = asyncio.Event()

    @property
    def num_abandoned(self) -> int:
        return len(self._abandoned)

    # --- from the sources ----------------------------------------------------------------------------

    def take(self, taken: Sequence[TakenTask]) -> None:
        """Run these tasks; each has a slot."""
        for each in taken:
            rollout_id, attempt = each.task.rollout_id, each.task.attempt
            if self._is_ending:
                # Not started, so not committed: others get it.
                self._release()
                continue
            before = self.runs_here.get(each.task.key)
            why_not = self._known.get((rollout_id, attempt))
            if why_not is not None:
                self._metrics.skipped(why_not)
                log.info("task skipped", rollout_id=rollout_id, attempt=attempt, why=why_not)
                each.started()
                self._release()
            elif before is not None:
                self._spawn(self._take_after(before, each))
            else:
                self._remember(rollout_id, attempt, "started")
                life = self.runs_here[each.task.key] = self._life(each.task)
                self._spawn(self._run(each, life))
        self._metrics.running(len(self.runs_here))

    def hear(self, events: Sequence[LoggedEvent]) -> None:
        """Take in what the attempts log says."""
        for event in events:
            life = self.runs_here.get(event.rollout_id.encode())
            if life is None or life.attempt.number != event.attempt:
                if event.is_dispatchers:
                    self._remember(event.rollout_id, event.attempt, "ended")
                elif event.is_dispatched:
                    self._remember(event.rollout_id, event.attempt, "started")
            elif event.attempt_id != life.attempt.attempt_id:
                if not life.is_claimed:
                    life.end("cancelled", SUPERSEDED)
            elif event.kind == "started":
                life.is_claimed = True
            elif event.kind == "ended":
                # Ours comes when it is ending already.
                life.end(
                    "cancelled",
                    f"ended by the {'dispatcher' if event.is_dispatchers else 'log'}: {event.status}",
                )

    def fail(self, error: HeadraceError) -> None:
        """Something that all need has failed: drain, and say why at the end."""
        if self.failure is None:
            self.failure = error
            log.error("runner failed", error=str(error))
        self.drain()

    # --- the end -------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more tasks; what runs goes on."""
        self._draining.set()

    async def drained(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing runs; False after the time-out."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return False
        return True

    async def told_to_drain(self) -> None:
        await self._draining.wait()

    def end_all(self) -> None:
        """End what runs, so that it is tried again elsewhere."""
        self._is_ending = True
        for life in list(self.runs_here.values()):
            life.end("unresponsive", STOPPED)

    def give_up(self) -> None:
        """Leave what is still there: Kafka takes nothing."""
        for task in self._tasks:
            task.cancel()

    # --- within --------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_after(self, before: Life, taken: TakenTask) -> None:
        """The rollout's earlier attempt is still ending here."""
        await before.over.wait()
        self.take([taken])

    async def _run(self, taken: TakenTask, life: Life) -> None:
        def started() -> None:
            taken.started()
            self._mailbox.post(self._metrics.started)

        try:
            await self._equip(life)
            ending = await life.run(started, lambda: self._ended(life))
            self._metrics.ended(ending.status, asyncio.get_running_loop().time() - life.began)
        except HeadraceError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001  a bug of ours must not leave a slot taken and nothing said
            self.fail(RunnerFailedError(f"{type(error).__name__}: {error}"))
        finally:
            self._ended(life)

    async def _equip(self, life: Life) -> None:
        """Give the attempt its resources: those that it is pinned to may have been published a moment ago."""
        attempt, pinned = life.attempt, life.attempt.record.resources
        try:
            try:
                resources = self._resources.resolve(pinned)
            except HeadraceError:
                for name, version in pinned.items():
                    await asyncio.to_thread(self._resources.wait_for, name, version, _RESOURCE_S)
                resources = self._resources.resolve(pinned)
        except HeadraceError as error:
            life.end("failed", str(error))
            return
        attempt.resources = resources
        attempt.base_url = self._base_url(attempt)
        key = self._settings.api_key
        attempt.api_key = None if key is None else key.get_secret_value()

    def _ended(self, life: Life) -> None:
        """Its slot is free: what is left is an acknowledgement. Once."""
        if life.over.is_set():
            return
        life.over.set()
        self.runs_here.pop(life.rollout_id.encode(), None)
        self._metrics.running(len(self.runs_here))
        self._release()

    def _life(self, task: AttemptTask) -> Life:
        sequencer = self._new_sequencer()
        attempt = Attempt(
            task, uuid7(), outlet=self._outlet, outbox=Outbox(self._mailbox), sequencer=sequencer
        )
        return Life(
            attempt,
            self.runner_id,
            sequencer=sequencer,
            outlet=self._outlet,
            executor=self._executor,
            mailbox=self._mailbox,
            abandoned=self._abandon,
            came_back=self._come_back,
        )

    def _base_url(self, attempt: Attempt) -> str | None:
        """As configured, else of the first resource that is an endpoint."""
        endpoints = sorted(name for name, version in attempt.resources.items() if version.kind == "endpoint")
        url = self._settings.base_url or (attempt.resources[endpoints[0]].uri if endpoints else None)
        if url is None:
            return None
        return url.replace("{attempt_id}", attempt.attempt_id).replace("{rollout_id}", attempt.rollout_id)

    def _abandon(self, execution: Execution) -> None:
        self._abandoned.add(execution)
        self._metrics.abandoned(len(self._abandoned))
        limit = self._settings.max_abandoned
        log.warning("agent left behind: it did not end when told to", num=len(self._abandoned), limit=limit)
        if len(self._abandoned) >= limit:
            self.fail(
                RunnerFailedError(
                    f"{limit} agents did not end with their attempts, and still hold threads here: "
                    "start it again. An async agent can be stopped, and a command (--exec) always can"
                )
            )

    def _come_back(self, execution: Execution) -> None:
        self._abandoned.discard(execution)
        self._metrics.abandoned(len(self._abandoned))

    def _remember(self, rollout_id: str, attempt: int, why: str) -> None:
        self._known[rollout_id, attempt] = why
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
