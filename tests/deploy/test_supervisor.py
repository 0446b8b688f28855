import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.stack.plan import Plan, Step
from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.service import Service
from headrace.cli.stack.state import Condition, Endpoints, Phase, ServiceState, StackState, load
from headrace.cli.stack.supervisor import Supervisor
from headrace.schemas.errors import FatalError, HeadraceError

ENDPOINTS = Endpoints(kafka_bootstrap_servers="127.0.0.1:1", clickhouse_host="127.0.0.1", clickhouse_port=2)
WAITS = "import sys; sys.stdin.read()"


class Script(Service):
    def __init__(self, root: Path, name: str, script: str = WAITS) -> None:
        super().__init__(root / name, name=name)
        self._script = script

    @property
    def endpoint(self) -> str:
        return "somewhere"

    @property
    def waits_for(self) -> str:
        return "nothing"

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-c", self._script]

    def _prepare(self) -> None:
        pass

    def _is_ready(self) -> bool:
        return True


@contextmanager
def signal_when(condition: Callable[[], object], number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """Send this process a signal as soon as the condition holds; after 30 s in any case."""

    def watch() -> None:
        deadline = time.monotonic() + 30
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO())


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def in_order(words: Sequence[str], haystack: str) -> bool:
    position = 0
    for word in words:
        position = haystack.find(word, position)
        if position < 0:
            return False
    return True


def read(home: Path) -> StackState:
    state = load(home)
    assert state is not None
    return state


def is_ready(home: Path) -> bool:
    state = load(home)
    return state is not None and state.phase is Phase.READY


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_servers_steps_processors_in_order_and_back(
    tmp_path: Path, console: Console, number: signal.Signals
) -> None:
    done: list[Endpoints] = []
    plan = Plan(
        endpoints=ENDPOINTS,
        servers=[Script(tmp_path, "one"), Script(tmp_path, "two")],
        external=[ServiceState(name="three", condition=Condition.EXTERNAL, endpoint="elsewhere:1")],
        steps=[Step("the step", done.append)],
        processors=[Script(tmp_path, "four")],
    )
    with signal_when(lambda: is_ready(tmp_path), number):
        Supervisor(tmp_path, console=console).run(lambda _: plan)
    assert done == [ENDPOINTS]
    said = text(console)
    up = [
        "three: elsewhere:1, set by the environment",
        "one: running",
        "two: running",
        "the step: done",
        "four: running",
    ]
    down = [
        "ready: Kafka 127.0.0.1:1, ClickHouse http://127.0.0.1:2",
        "stopping",
        "four: st",
        "two: st",
        "one: st",
    ]
    assert in_order([*up, *down], said), said
    assert read(tmp_path).phase is Phase.STOPPED
    assert not any(service.running for service in (*plan.servers, *plan.processors))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_who_dies_is_reported_and_started_again(tmp_path: Path, console: Console) -> None:
    flaky = Script(
        tmp_path,
        "flaky",
        f"import pathlib, sys\nif not pathlib.Path('again').exists():\n"
        f"    pathlib.Path('again').touch(); sys.exit('out of luck')\n{WAITS}",
    )

    def recovered() -> bool:
        state = load(tmp_path)
        return bool(
            state and any(s.num_restarts == 1 and s.actual is Condition.RUNNING for s in state.services)
        )

    with signal_when(recovered):
        Supervisor(tmp_path, console=console).run(lambda _: Plan(ENDPOINTS, processors=[flaky]))
    words = [
        "flaky exited with status 1",
        "out of luck",
        "flaky: starts again in 0.5 s",
        "flaky: running",
        "stopping",
    ]
    assert in_order(words, text(console)), text(console)


def test_who_keeps_dying_is_given_ever_more_time(tmp_path: Path, console: Console) -> None:
    broken = Script(tmp_path, "broken", "raise SystemExit(3)")
    with signal_when(lambda: "again in 2 s" in text(console)):
        Supervisor(tmp_path, console=console).run(lambda _: Plan(ENDPOINTS, processors=[broken]))
    assert in_order(["again in 0.5 s", "again in 1 s", "again in 2 s"], text(console))


@pytest.mark.parametrize("error", [FatalError("topic x has 3 partitions"), OSError("topic x is odd")])
def test_a_step_that_fails_stops_everything(tmp_path: Path, console: Console, error: Exception) -> None:
    def fail(_: Endpoints) -> None:
        raise error

    server, processor = Script(tmp_path, "server"), Script(tmp_path, "processor")
    plan = Plan(ENDPOINTS, servers=[server], steps=[Step("fails", fail)], processors=[processor])
    with pytest.raises(type(error), match="topic x"):
        Supervisor(tmp_path, console=console).run(lambda _: plan)
    assert not server.running
    assert processor.pid is None
    state = read(tmp_path)
    assert (state.phase, state.error) == (Phase.FAILED, str(error))


def test_a_signal_while_starting_stops_what_had_started(tmp_path: Path, console: Console) -> None:
    server = Script(tmp_path, "server")

    def hang(_: Endpoints) -> None:
        with signal_when(lambda: True):
            threading.Event().wait(60)

    plan = Plan(ENDPOINTS, servers=[server], steps=[Step("hangs", hang)])
    Supervisor(tmp_path, console=console).run(lambda _: plan)
    assert not server.running
    assert read(tmp_path).phase is Phase.STOPPED


def test_leftovers_of_a_killed_supervisor_are_ended_first(tmp_path: Path, console: Console) -> None:
    leftover = Script(tmp_path, "leftover").start()
    identity = leftover.process_id
    assert identity is not None
    gone = ProcessId(pid=os.getpid(), start_ticks=1)
    service = ServiceState(
        name="kafka", condition=Condition.RUNNING, process=identity, ports={"port": 20_001}
    )
    StackState(supervisor=gone, phase=Phase.READY, services=(service,)).save(tmp_path)

    def make_plan(previous: StackState | None) -> Plan:
        assert not identity.alive()
        assert previous is not None
        assert previous.ports("kafka") == {"port": 20_001}
        raise HeadraceError("seen")

    with pytest.raises(HeadraceError, match="seen"):
        Supervisor(tmp_path, console=console).run(make_plan)
    assert read(tmp_path).ports("kafka") == {"port": 20_001}
    leftover.kill()
