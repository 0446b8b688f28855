"""Processes of this machine: identity despite reused pids, and children that die with their parent."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

_TETHER = Path(__file__).with_name("tether.py")

# The kernel's parent-death signal fires when the *thread* that forked ends, so every child is forked by this
# one thread, which lives until the interpreter exits.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-spawn")


class ProcessId(BaseModel):
    """A pid with its start time in clock ticks since boot, which tells it from a later process's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that runs under `pid` now; None when there is none, or only its unreaped remains."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The command's name stands in parentheses and may hold spaces; what follows the last one is regular.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid=pid, start_ticks=int(fields[19]))

    def alive(self) -> bool:
        return ProcessId.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when the process is gone."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def wait_gone(self, timeout_s: float) -> bool:
        """Whether the process ended within `timeout_s`; it need not be a child of this one."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def spawn(
    command: Sequence[str],
    *,
    cwd: Path,
    log_path: Path,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own, so that a terminal's Ctrl-C reaches only us, and we stop it in
    order.

    Both its outputs are appended to `log_path`. Its stdin is a pipe that nothing is written to and that
    closes with us. `env` is added to our environment. The kernel kills the child when this process dies,
    however it dies.
    """
    tethered = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), *command]
    environment = {**os.environ, **(env or {})}

    def fork() -> subprocess.Popen[bytes]:
        with log_path.open("ab") as log:
            return subprocess.Popen(
                tethered,
                cwd=cwd,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return _SPAWNER.submit(fork).result()
