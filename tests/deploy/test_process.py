import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.cli.stack import ports
from headrace.cli.stack.process import ProcessId


def test_a_running_process_is_itself() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.alive()


def test_a_reused_pid_is_another_process() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert not me.model_copy(update={"start_ticks": me.start_ticks - 1}).alive()


def test_an_ended_child_that_nobody_reaped_is_gone() -> None:
    child = subprocess.Popen(["sleep", "0"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessId.of(child.pid) is None
    child.wait()


def test_a_program_may_have_any_name(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    shutil.copy(str(shutil.which("sleep")), program)
    child = subprocess.Popen([program, "60"])
    identity = ProcessId.of(child.pid)
    assert identity is not None
    assert identity.start_ticks > 1
    child.kill()
    child.wait()


@pytest.mark.parametrize("preferred", [None, 25_123])
def test_picked_ports_are_free_and_distinct(preferred: int | None) -> None:
    first = ports.pick(preferred)
    second = ports.pick(first, taken=(first,))
    assert first != second
    assert ports.is_free(first)
    assert first < 32_768


def test_a_taken_port_is_replaced() -> None:
    import socket  # noqa: PLC0415 - this test only

    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert ports.is_open(port)
        assert not ports.is_free(port)
        assert ports.pick(port) != port
    assert not ports.is_open(port)
