"""Process groups of a runner's commands: signalled as a whole, and killed when the runner dies."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

_REAPER = Path(__file__).with_name("group_reaper.py")


class ProcessGroups:
    """A context manager: it keeps a helper process that outlives a killed runner by a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reaper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C at a terminal must not end it before the runner.
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with suppress(BrokenPipeError):
                self._reaper.stdin.close()
            self._reaper.wait()

    def add(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._reaper is None or self._reaper.stdin is None:
            return
        with self._lock, suppress(BrokenPipeError, ValueError):
            self._reaper.stdin.write(line)
            self._reaper.stdin.flush()


def signal_group(group: int, number: signal.Signals) -> None:
    """No error where nobody is left in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
