"""A child process: fed, heard, ended with all of its group."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.pipeline import wait_until

from headrace.streams.runner.child_process import KEPT_BYTES, ChildProcess, Exit
from headrace.streams.runner.process_groups import ProcessGroups

Run = Callable[..., Exit]


@pytest.fixture
def groups() -> Iterator[ProcessGroups]:
    with ProcessGroups() as made:
        yield made


@pytest.fixture
def run(groups: ProcessGroups) -> Run:
    def run_it(
        *command: str, given: bytes = b"", stop_when: Path | None = None, grace_s: float = 0.2
    ) -> Exit:
        child = ChildProcess(groups, kill_grace_s=grace_s)
        if stop_when is not None:

            def stop() -> None:
                wait_until(stop_when.exists, what="the child to be ready")
                child.stop()

            threading.Thread(target=stop).start()
        return child.run(command, dict(os.environ), given)

    return run_it


def is_alive(pid: int) -> bool:
    """A zombie is dead: nobody here may be its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_is_fed_and_heard(run: Run) -> None:
    exited = run("sh", "-c", "cat; echo said >&2; exit 3", given=b"task\n")
    assert exited == Exit(3, "task\n", "said\n")


def test_a_large_input_and_output_at_once(run: Run) -> None:
    given = b"x" * 5_000_000 + b"\nend\n"
    exited = run("cat", given=given)
    assert exited.status == 0
    assert exited.stdout == given[-KEPT_BYTES:].decode()


def test_it_need_not_read_its_input(run: Run) -> None:
    assert run("true", given=b"x" * 5_000_000).status == 0


def test_what_is_no_utf8_is_replaced(run: Run) -> None:
    assert run("printf", r"\377ok").stdout == "�ok"


def test_a_program_that_is_not_there(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        run("/no/such/program")


def test_told_to_stop_it_may_end_well(run: Run, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo 0.5; exit 0' TERM; touch {ready}; while :; do sleep 0.01; done"
    exited = run("sh", "-c", script, stop_when=ready, grace_s=20.0)
    assert (exited.status, exited.stdout) == (0, "0.5\n")


def test_if_it_does_not_it_is_killed_with_its_group(run: Run, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {ready}; sleep 60' & sleep 60; sleep 60"
    began = time.monotonic()
    exited = run("sh", "-c", script, stop_when=ready)
    assert exited.status == -signal.SIGKILL
    assert time.monotonic() - began < 20
    wait_until(lambda: not is_alive(int(ready.read_text())), what="the grandchild to be gone")


def test_what_it_leaves_behind_does_not_hold_it_up(run: Run, tmp_path: Path) -> None:
    """A grandchild has its outputs open."""
    left = tmp_path / "left"
    exited = run(
        "sh", "-c", f"sh -c 'echo $$ > {left}; sleep 60' & while ! [ -s {left} ]; do :; done; echo 1"
    )
    assert (exited.status, exited.stdout) == (0, "1\n")
    wait_until(lambda: not is_alive(int(left.read_text())), what="the grandchild to be gone")


def test_it_may_be_stopped_before_and_after(groups: ProcessGroups) -> None:
    child = ChildProcess(groups, kill_grace_s=20.0)
    child.stop()
    assert child.run(["sleep", "60"], dict(os.environ), b"").status == -signal.SIGTERM
    child.stop()


def test_a_runner_that_is_killed_takes_its_groups_along(tmp_path: Path) -> None:
    program = """
import os, sys
from headrace.streams.runner.child_process import ChildProcess
from headrace.streams.runner.process_groups import ProcessGroups
with ProcessGroups() as groups:
    ChildProcess(groups, kill_grace_s=1).run(["sh", "-c", sys.argv[1]], dict(os.environ), b"")
"""
    script = f"sh -c 'echo $$ > {tmp_path}/inner; sleep 60' & echo $$ > {tmp_path}/outer; sleep 60"
    runner = subprocess.Popen([sys.executable, "-c", program, script])
    places = [tmp_path / "inner", tmp_path / "outer"]
    wait_until(lambda: all(place.exists() and place.read_text() for place in places), what="the children")
    # Registered right after the start: known by the time that they have started others.
    pids = [int(place.read_text()) for place in places]
    assert all(map(is_alive, pids))
    runner.kill()
    runner.wait()
    wait_until(lambda: not any(map(is_alive, pids)), what="the groups to be gone")
