import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.service import Service, ServiceError

READY_THEN_WAIT = "import pathlib, sys; pathlib.Path('ready').touch(); sys.stdin.read()"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY_THEN_WAIT}"


class Script(Service):
    """A Python script as a service; ready when the file `ready` is there."""

    def __init__(
        self, root: Path, script: str, *, timeout_s: float = 30.0, program: str = sys.executable
    ) -> None:
        super().__init__(root, name="script", start_timeout_s=timeout_s, stop_timeout_s=0.2)
        self._argv = [program, "-c", script]

    @property
    def endpoint(self) -> str:
        return ""

    @property
    def waits_for(self) -> str:
        return "the file 'ready'"

    def _command(self) -> Sequence[str]:
        return self._argv

    def _prepare(self) -> None:
        (self.root / "ready").unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        return (self.root / "ready").exists()


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], Script]:
    return lambda script: Script(tmp_path, script).start()


def test_c18_a_child_that_dies_at_once_is_shown_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        Script(tmp_path, "import sys; print('to stdout', flush=True); sys.exit('disk is on fire')").start()
    for words in ("waiting for the file 'ready'", "exited with status 1", "to stdout", "disk is on fire"):
        assert words in str(caught.value)


def test_c18_a_child_killed_by_a_signal_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="script died with signal 4"):
        Script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGILL)").start()


def test_c18_a_timeout_says_what_was_waited_for_and_ends_the_child(tmp_path: Path) -> None:
    script = Script(tmp_path, "import sys; print('loading', flush=True); sys.stdin.read()", timeout_s=1)
    with pytest.raises(ServiceError) as caught:
        script.start()
    for words in (
        "not ready after 1 s",
        "still waiting for the file 'ready'",
        "loading",
        str(script.log_path),
    ):
        assert words in str(caught.value)
    assert not script.running


def test_c18_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no-such-program: No such file"):
        Script(tmp_path, "", program="no-such-program").start()


def test_only_the_words_of_the_latest_start_are_shown(tmp_path: Path) -> None:
    script = Script(tmp_path, f"import sys; print('begin', flush=True); {READY_THEN_WAIT}")
    script.start().stop()
    script.start()
    assert script.tail() == "begin"
    assert script.log_path.read_text() == "begin\nbegin\n"
    script.stop()


def test_stop_asks_before_it_kills(start: Callable[[str], Script]) -> None:
    script = start(
        f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {READY_THEN_WAIT}"
    )
    script.stop_timeout_s = 30
    script.stop()
    assert script.exit_status == 7


def test_stop_kills_a_child_that_ignores_sigterm(start: Callable[[str], Script]) -> None:
    script = start(IGNORES_SIGTERM)
    script.stop()
    assert script.exit_status == -signal.SIGKILL


def test_stop_twice_and_before_start_is_fine(tmp_path: Path) -> None:
    script = Script(tmp_path, READY_THEN_WAIT)
    script.stop()
    script.start()
    script.stop()
    script.stop()


def test_start_while_it_runs_changes_nothing(start: Callable[[str], Script]) -> None:
    script = start(READY_THEN_WAIT)
    pid = script.pid
    assert script.start().pid == pid
    script.stop()


def test_kill_takes_along_what_the_child_started(start: Callable[[str], Script], tmp_path: Path) -> None:
    script = start(
        "import pathlib, subprocess\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        f"pathlib.Path('pid').write_text(str(child.pid)); {READY_THEN_WAIT}"
    )
    grandchild = ProcessId.of(int((tmp_path / "pid").read_text()))
    assert grandchild is not None
    script.kill()
    assert grandchild.wait_gone(10)


def test_a_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    script = Script(tmp_path, READY_THEN_WAIT)
    thread = threading.Thread(target=script.start)
    thread.start()
    thread.join()
    assert script.process_id is not None
    assert not script.process_id.wait_gone(0.3)
    script.stop()


def test_no_child_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_script = f"""
import pathlib, sys
from headrace.cli.stack.process import spawn

root = pathlib.Path({str(tmp_path)!r})
sleeper = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
child = spawn(sleeper, cwd=root, log_path=root / "log")
while not (root / "log").read_text():
    pass
print(child.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = ProcessId.of(int(parent.stdout.readline()))
        assert child is not None
        parent.kill()
    assert child.wait_gone(10)
