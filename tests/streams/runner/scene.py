"""A runner in memory, whose agents, log and Kafka the test plays."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.streams.runner.twins import FixedResources, MemoryOutlet

from headrace.schemas.records import AttemptEvent, AttemptTask
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_log import LoggedEvent
from headrace.streams.runner.execution import Done
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.metrics import RunnerMetrics
from headrace.streams.runner.runner import Runner
from headrace.streams.runner.sequencer import LocalSequencer, Sequencer
from headrace.streams.runner.settings import RunnerSettings
from headrace.streams.runner.tasks import TakenTask


class ScriptedExecution:
    def __init__(self, attempt: Attempt, done: Done, *, hears: bool) -> None:
        self.attempt = attempt
        self.done = done
        self.hears = hears
        self.is_stopped = False
        self.is_abandoned = False

    def stop(self) -> None:
        self.is_stopped = True
        if self.hears:
            self.done("stopped")

    def abandon(self) -> None:
        self.is_abandoned = True


class ScriptedExecutor:
    """An Executor whose agents the test ends."""

    def __init__(self, stop_grace_s: float = 0.0, *, hears: bool = True) -> None:
        self.stop_grace_s = stop_grace_s
        self.hears = hears
        self.executions: list[ScriptedExecution] = []
        self.error: Exception | None = None

    def start(self, attempt: Attempt, done: Done) -> ScriptedExecution:
        if self.error is not None:
            raise self.error
        self.executions.append(ScriptedExecution(attempt, done, hears=self.hears))
        return self.executions[-1]


class CountingMetrics(RunnerMetrics):
    def __init__(self) -> None:
        self.ends: list[str] = []
        self.skips: list[str] = []
        self.num_running = 0

    def ended(self, status: Any, seconds: float) -> None:  # noqa: ARG002
        self.ends.append(status)

    def skipped(self, why: str) -> None:
        self.skips.append(why)

    def running(self, number: int) -> None:
        self.num_running = number


class Scene:
    def __init__(
        self,
        executor: ScriptedExecutor,
        outlet: MemoryOutlet,
        *,
        new_sequencer: Callable[[], Sequencer] = LocalSequencer,
        **settings: Any,
    ) -> None:
        self.executor = executor
        self.outlet = outlet
        self.metrics = CountingMetrics()
        self.num_free = 0
        self.started: list[str] = []
        self.runner = Runner(
            RunnerSettings(**settings),
            executor,
            outlet,
            mailbox=Mailbox(asyncio.get_running_loop()),
            resources=FixedResources(),
            release=self._release,
            metrics=self.metrics,
            new_sequencer=new_sequencer,
        )

    def _release(self) -> None:
        self.num_free += 1

    def take(self, *tasks: AttemptTask) -> None:
        self.runner.take([TakenTask(task, partial(self.started.append, task.rollout_id)) for task in tasks])

    def hear(self, task: AttemptTask, kind: str, attempt_id: str, **fields: Any) -> None:
        defaults: dict[str, Any] = {
            "rollout_id": task.rollout_id,
            "attempt_id": attempt_id,
            "attempt": task.attempt,
            "kind": kind,
            "status": "running",
            "error": None,
            "is_dispatchers": False,
            "is_dispatched": kind == "started",
        }
        self.runner.hear([LoggedEvent(**(defaults | fields))])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  a turn of the loop at a time
                await asyncio.sleep(0)

    async def running(self, number: int = 1) -> list[ScriptedExecution]:
        await self.until(lambda: len(self.executor.executions) >= number)
        return self.executor.executions

    def ends(self) -> list[tuple[str, str | None, int | None]]:
        return [
            (event.status, event.error, event.last_sequence_id)
            for event in self.outlet.of(AttemptEvent)
            if event.kind == "ended"
        ]


Play = Callable[[Scene], Awaitable[None]]


def play(scene: Play, executor: ScriptedExecutor | None = None, **options: Any) -> None:
    asyncio.run(act(scene, executor, **options))


async def act(
    scene: Play, executor: ScriptedExecutor | None = None, *, is_held: bool = False, **options: Any
) -> None:
    made = Scene(executor or ScriptedExecutor(), MemoryOutlet(is_held=is_held), **options)
    await scene(made)
    for life in list(made.runner.runs_here.values()):
        life.end("failed", "the test is over")
    made.outlet.is_held = False
    made.outlet.settle()
    assert await made.runner.drained(10)
