"""A service as a child process: spawn, log file, readiness, stop.

Guarantees: `start` returns only when the service answers, or raises with the child's own last words; no child
outlives this process, even one that is killed -9; `start` after `stop` or `kill` gives the same service
again, on the same ports and data.
"""

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from headrace.cli.stack.process import ProcessId, spawn
from headrace.schemas.errors import FatalError

_POLL_S = 0.05
_MAX_LOG_BYTES = 16 * 2**20
_TAIL_LINES = 30
_TAIL_BYTES = 16_384


class ServiceError(FatalError):
    """A service did not start, or died; the message ends with the last lines of its own log."""


class Service(ABC):
    """Not for several threads at once."""

    def __init__(
        self,
        root: Path,
        *,
        name: str,
        log_dir: Path | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 15.0,
    ) -> None:
        self.name = name
        self.root = root.resolve()
        self.log_path = (log_dir.resolve() if log_dir else self.root / "logs") / f"{name}.log"
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self.startup_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._buried = False
        self._log_offset = 0

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Where clients find it; empty when it listens nowhere."""

    @property
    @abstractmethod
    def waits_for(self) -> str:
        """What `start` waits for, in words for the person who waits."""

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports that it keeps over restarts, by the names of the constructor's arguments."""
        return {}

    @property
    def cwd(self) -> Path:
        return self.root

    @property
    def data_path(self) -> Path:
        return self.root / "data"

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    def _environment(self) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def _prepare(self) -> None:
        """Write configuration before each start; `self.root` and the log's folder exist."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Asked about 20 times a second while starting; must answer within a second or two."""

    def _request_stop(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def process_id(self) -> ProcessId | None:
        return ProcessId.of(self._process.pid) if self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """As `subprocess` has it: negative for a signal; None while it runs and before the first start."""
        return self._process.poll() if self._process is not None else None

    def start(self) -> Self:
        """Start and wait until ready. Raises ServiceError if the child dies or `start_timeout_s` passes."""
        if self.running:
            return self
        self.kill()
        began = time.monotonic()
        for folder in (self.root, self.data_path, self.log_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._rotate_log()
        self._prepare()
        command = self._command()
        self._process = spawn(command, cwd=self.cwd, log_path=self.log_path, env=self._environment())
        self._buried = False
        try:
            self._wait_ready(self._process, began + self.start_timeout_s)
        except BaseException:
            self.kill()
            raise
        self.startup_s = time.monotonic() - began
        return self

    def stop(self) -> None:
        """Ask it to stop, and kill it after `stop_timeout_s`. Nothing happens if it does not run."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self._request_stop(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.stop_timeout_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the child and whatever it started, and reap it. Call it too when it died by itself."""
        if self._process is None or self._buried:
            return
        # The child leads its own session, and so its group; the group may outlive it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Once only: later the number may be another group's.
        self._buried = True
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tail(self) -> str:
        """The last lines that the child wrote since its latest start."""
        return tail(self.log_path, since=self._log_offset)

    def death_notice(self) -> str:
        """How the child ended, with its last words."""
        status = self.exit_status
        how = (
            f"died with signal {-status}"
            if status is not None and status < 0
            else f"exited with status {status}"
        )
        return f"{self.name} {how}\n{self._last_words()}"

    def _last_words(self) -> str:
        words = self.tail()
        return f"last lines of {self.log_path}:\n{words}" if words else f"its log {self.log_path} is empty"

    def _wait_ready(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        while True:
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                raise ServiceError(f"while waiting for {self.waits_for}: {self.death_notice()}")
            if self._is_ready():
                return
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{self.name} was not ready after {self.start_timeout_s:g} s: "
                    f"still waiting for {self.waits_for}\n{self._last_words()}"
                )

    def _rotate_log(self) -> None:
        try:
            size = self.log_path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size > _MAX_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
            size = 0
        self._log_offset = size


def tail(log_path: Path, *, since: int = 0) -> str:
    """The last lines of a log, from byte `since` on; empty if there are none."""
    try:
        with log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(since if since <= end else 0, end - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
