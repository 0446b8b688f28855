"""`headrace up --detach` and `headrace down`: a supervisor in the background."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from headrace.cli.stack.state import Phase, load, lock
from headrace.schemas.errors import FatalError

_POLL_S = 0.1
_MAX_LOG_BYTES = 16 * 2**20
# The supervisor gives each of its children up to 20 s.
_STOP_TIMEOUT_S = 90.0


def start(home: Path, arguments: Sequence[str], *, console: Console) -> None:
    """Start `headrace up ARGUMENTS` in a session of its own; show what it says until it is ready.

    Raises FatalError, after its words were shown, if it ends instead. Ctrl-C while waiting stops it again.
    """
    # Said here rather than in the running stack's log; the child's own lock is what counts.
    with lock(home):
        pass
    log_path = home / "logs" / "supervisor.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if log_path.exists() and log_path.stat().st_size > _MAX_LOG_BYTES:
        log_path.replace(log_path.with_suffix(".log.1"))
    with log_path.open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "up", *arguments],
            env={**os.environ, "HEADRACE_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        offset = log.tell()
    try:
        while not _is_ready(home, supervisor.pid):
            offset = _show(log_path, offset, console)
            try:
                supervisor.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            _show(log_path, offset, console)
            raise FatalError(
                f"the stack did not start (status {supervisor.returncode}); its log is {log_path}"
            )
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        raise
    _show(log_path, offset, console)
    # It outlives us on purpose; without this the interpreter warns of a child that was not waited for.
    supervisor.returncode = 0


def stop(home: Path, *, console: Console) -> None:
    """Stop the stack of that home and wait until it is gone; say so if there is none."""
    state = load(home)
    if state is None or not state.alive:
        stale = state is not None and state.phase not in {Phase.STOPPED, Phase.FAILED}
        why = f" (process {state.supervisor.pid} ended without stopping it)" if state and stale else ""
        _say(console, f"nothing runs in {home}{why}")
        return
    began = time.monotonic()
    state.supervisor.signal(signal.SIGTERM)
    with console.status("the stack stops"):
        gone = state.supervisor.wait_gone(_STOP_TIMEOUT_S)
    if not gone:
        state.supervisor.signal(signal.SIGKILL)
        state.supervisor.wait_gone(_STOP_TIMEOUT_S)
        _say(console, f"process {state.supervisor.pid} did not stop in {_STOP_TIMEOUT_S:g} s and was killed")
    _say(console, f"stopped after {time.monotonic() - began:.1f} s; the data stays in {home}")


def _is_ready(home: Path, pid: int) -> bool:
    state = load(home)
    return state is not None and state.supervisor.pid == pid and state.phase is Phase.READY


def _show(log_path: Path, offset: int, console: Console) -> int:
    """Print what came after `offset`; the new offset."""
    with log_path.open("rb") as log:
        log.seek(offset)
        text = log.read().decode(errors="replace")
        if text:
            _say(console, text.rstrip("\n"))
        return log.tell()


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
