import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.stack.process import ProcessId

_GUARD = Path(__file__).parents[2] / "deploy" / "headrace" / "cli" / "stack" / "group_guard.py"
_PROGRAM = """
import subprocess, sys
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "ends by itself"])
def test_what_a_program_leaves_behind_is_killed(*, is_killed: bool) -> None:
    command = [sys.executable, str(_GUARD), sys.executable, "-c", _PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as program:  # type: ignore[call-overload]
        child = ProcessId.of(int(program.stdout.readline()))
        assert child is not None
        assert os.getpgid(child.pid) == program.pid
        if is_killed:
            program.kill()
        else:
            program.communicate("\n")
        assert child.wait_gone(10)
    assert program.returncode == (-signal.SIGKILL if is_killed else 0)


def test_it_must_lead_its_group() -> None:
    done = subprocess.run([sys.executable, str(_GUARD), "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must lead its process group" in done.stderr


def test_a_program_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, str(_GUARD), "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 1
    assert done.stderr == "no-such-program: No such file or directory\n"
