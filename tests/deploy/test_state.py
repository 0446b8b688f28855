import os
from pathlib import Path

import pytest

from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.state import (
    STATE_FILE,
    Condition,
    Endpoints,
    Phase,
    ServiceState,
    StackState,
    load,
    lock,
    running_endpoints,
)
from headrace.schemas.errors import FatalError

ENDPOINTS = Endpoints(kafka_bootstrap_servers="127.0.0.1:1", clickhouse_host="127.0.0.1", clickhouse_port=2)
ME = ProcessId.of(os.getpid()) or pytest.fail("this test has no process")
GONE = ProcessId(pid=ME.pid, start_ticks=ME.start_ticks - 1)


def stack(supervisor: ProcessId = ME, phase: Phase = Phase.READY) -> StackState:
    kafka = ServiceState(
        name="kafka",
        condition=Condition.RUNNING,
        process=supervisor,
        endpoint="127.0.0.1:1",
        ports={"port": 1},
    )
    return StackState(supervisor=supervisor, phase=phase, endpoints=ENDPOINTS, services=(kafka,))


def test_saved_is_loaded(tmp_path: Path) -> None:
    stack().save(tmp_path)
    assert load(tmp_path) == stack()
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"[]", b'{"version": 9}'], ids=["none", "empty", "cut", "list", "other"]
)
def test_what_cannot_be_read_is_no_state(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / STATE_FILE).write_bytes(content)
    assert load(tmp_path) is None
    assert running_endpoints(tmp_path) is None


@pytest.mark.parametrize(
    ("state", "found"),
    [
        pytest.param(stack(), ENDPOINTS, id="ready"),
        pytest.param(stack(phase=Phase.STARTING), None, id="still-starting"),
        pytest.param(stack(phase=Phase.STOPPED), None, id="stopped"),
        pytest.param(stack(GONE), None, id="stale"),
    ],
)
def test_endpoints_are_those_of_a_stack_that_runs(
    tmp_path: Path, state: StackState, found: Endpoints | None
) -> None:
    state.save(tmp_path)
    assert running_endpoints(tmp_path) == found


def test_a_service_whose_process_is_gone_does_not_run() -> None:
    assert stack().services[0].actual is Condition.RUNNING
    assert stack(GONE).services[0].actual is Condition.STOPPED


def test_ports_are_found_by_service() -> None:
    assert stack().ports("kafka") == {"port": 1}
    assert stack().ports("clickhouse") == {}


def test_sparse_files_count_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "full").write_bytes(os.urandom(10_000))
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(2**30)
    size = ServiceState(name="x", condition=Condition.STOPPED, data_path=tmp_path).data_bytes()
    assert 10_000 <= size < 2**20


def test_one_supervisor_per_home(tmp_path: Path) -> None:
    stack().save(tmp_path)
    with (
        lock(tmp_path),
        pytest.raises(FatalError, match=rf"already runs in .*process {ME.pid}.*headrace down"),
        lock(tmp_path),
    ):
        pass
    with lock(tmp_path):
        pass
