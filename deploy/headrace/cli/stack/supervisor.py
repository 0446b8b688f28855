"""`headrace up`: start everything in order, watch it, restart what dies, stop everything in reverse order.

Guarantees: one supervisor per home; ready means that every server answered, every step was done and every
processor was started (one that then dies is started again, ever more slowly); nothing that it started
outlives it, however it ends; data stays.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console

from headrace.cli.stack.plan import Plan
from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.service import Service, ServiceError
from headrace.cli.stack.state import Condition, Phase, ServiceState, StackState, load, lock
from headrace.schemas.errors import FatalError

_WATCH_S = 0.2
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MAX_S = 30.0
# Who ran this long is not failing at its start.
_STEADY_S = 60.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Child:
    service: Service
    condition: Condition = Condition.STOPPED
    num_restarts: int = 0
    started_at: float = 0.0
    backoff_s: float = _BACKOFF_FIRST_S
    restart_at: float = 0.0

    def state(self) -> ServiceState:
        service = self.service
        return ServiceState(
            name=service.name,
            condition=self.condition,
            process=service.process_id,
            endpoint=service.endpoint,
            num_restarts=self.num_restarts,
            ports=service.ports,
            data_path=service.data_path,
            log_path=service.log_path,
        )


class _StopRequestedError(BaseException):
    """A stop signal came; not an Exception, so that nobody on the way takes it for a failure."""


class Supervisor:
    """Runs in the main thread, where signals arrive."""

    def __init__(self, home: Path, *, console: Console) -> None:
        me = ProcessId.of(os.getpid())
        if me is None:
            raise FatalError("/proc does not show this process; the local stack needs Linux")
        self._me = me
        self._home = home.resolve()
        self._console = console
        self._plan: Plan | None = None
        # Shown, and kept for the ports, until there is a plan.
        self._past: tuple[ServiceState, ...] = ()
        self._children: list[_Child] = []
        self._phase = Phase.STARTING
        self._stopping = False

    def run(self, make_plan: Callable[[StackState | None], Plan]) -> None:
        """Until a stop signal. `make_plan` gets the home's last state.

        Raises FatalError if a stack runs in this home already, and whatever fails while starting;
        everything is stopped then.
        """
        with lock(self._home), self._stop_signals():
            error = ""
            try:
                previous = load(self._home)
                end_leftovers(previous)
                self._past = _ended(previous)
                self._save()
                self._start_all(make_plan(previous))
                self._watch()
            except _StopRequestedError:
                self._say("stopping")
            except Exception as failure:
                error = str(failure) or repr(failure)
                raise
            finally:
                self._stopping = True
                self._stop_all(error)

    def _start_all(self, plan: Plan) -> None:
        self._plan = plan
        servers = [_Child(service) for service in plan.servers]
        processors = [_Child(service) for service in plan.processors]
        self._children = [*servers, *processors]
        for external in plan.external:
            self._say(f"{external.name}: {external.endpoint}, set by the environment, not started here")
        for child in servers:
            self._launch(child)
        for step in plan.steps:
            with self._console.status(step.name):
                step.run(plan.endpoints)
            self._say(f"{step.name}: done")
        for child in processors:
            self._launch_or_retry(child)
        at = plan.endpoints
        clickhouse = f"http://{at.clickhouse_host}:{at.clickhouse_port}"
        self._say(f"data, logs and state are in {self._home}")
        self._say(f"ready: Kafka {at.kafka_bootstrap_servers}, ClickHouse {clickhouse}")
        # After the words: who waits for this phase shows them.
        self._phase = Phase.READY
        self._save()

    def _launch(self, child: _Child) -> None:
        """Start it and say so. Raises ServiceError."""
        service = child.service
        child.condition = Condition.STARTING
        self._save()
        if service.endpoint:
            self._say(f"{service.name}: waiting for {service.waits_for}")
        with self._console.status(f"waiting for {service.waits_for}"):
            service.start()
        child.condition = Condition.RUNNING
        child.started_at = time.monotonic()
        at = f" at {service.endpoint}" if service.endpoint else ""
        self._say(f"{service.name}: running{at}, pid {service.pid}, after {service.startup_s:.1f} s")
        self._save()

    def _watch(self) -> None:
        while True:
            for child in self._children:
                self._look_after(child)
            time.sleep(_WATCH_S)

    def _look_after(self, child: _Child) -> None:
        now = time.monotonic()
        if child.condition is Condition.RUNNING and not child.service.running:
            notice = child.service.death_notice()
            child.service.kill()
            if now - child.started_at > _STEADY_S:
                child.backoff_s = _BACKOFF_FIRST_S
            self._schedule_restart(child, notice)
        elif child.condition is Condition.RESTARTING and now >= child.restart_at:
            child.num_restarts += 1
            self._launch_or_retry(child)

    def _launch_or_retry(self, child: _Child) -> None:
        try:
            self._launch(child)
        except ServiceError as error:
            self._schedule_restart(child, str(error))

    def _schedule_restart(self, child: _Child, notice: str) -> None:
        self._say(f"{notice}\n{child.service.name}: starts again in {child.backoff_s:g} s")
        child.condition = Condition.RESTARTING
        child.restart_at = time.monotonic() + child.backoff_s
        child.backoff_s = min(2 * child.backoff_s, _BACKOFF_MAX_S)
        self._save()

    def _stop_all(self, error: str) -> None:
        self._phase = Phase.STOPPING
        self._save()
        for child in reversed(self._children):
            if child.service.pid is None:
                continue
            with self._console.status(f"{child.service.name} stops"):
                child.service.stop()
            child.condition = Condition.STOPPED
            self._say(f"{child.service.name}: stopped")
        self._phase = Phase.FAILED if error else Phase.STOPPED
        self._save(error)

    def _save(self, error: str = "") -> None:
        external = self._plan.external if self._plan else self._past
        StackState(
            supervisor=self._me,
            phase=self._phase,
            endpoints=self._plan.endpoints if self._plan else None,
            services=(*external, *(child.state() for child in self._children)),
            error=error,
        ).save(self._home)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _stop_signals(self) -> Iterator[None]:
        # What is ignored stays ignored: nohup, a shell's background job.
        numbers = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The first one stops the stack in order; another one does not wait for that."""
        if not self._stopping:
            self._stopping = True
            raise _StopRequestedError
        for child in self._children:
            process = child.service.process_id
            if process is not None:
                process.signal(signal.SIGKILL)


def _ended(state: StackState | None) -> tuple[ServiceState, ...]:
    update = {"condition": Condition.STOPPED, "process": None}
    return tuple(service.model_copy(update=update) for service in (state.services if state else ()))


def end_leftovers(state: StackState | None) -> None:
    """Children of a supervisor that was killed die with it, but not at once, and they hold ports and data."""
    for service in state.services if state else ():
        if service.process is not None:
            service.process.signal(signal.SIGKILL)
            service.process.wait_gone(10)
