"""A child process under supervision: input fed, the ends of its outputs kept, ended with its whole group.

Blocking, for a thread of its own. Only the last bytes of what it prints are kept, however much that is.
"""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.streams.runner.process_groups import ProcessGroups, signal_group

KEPT_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_LEFT_READS = 16
"""No more than a pipe can hold: what left the group may print on."""


class Exit(NamedTuple):
    """How it ended: the status as a shell has it, negative for a signal; the ends of its outputs."""

    status: int
    stdout: str
    stderr: str


class ChildProcess:
    """`run` once, in one thread; `stop` from any other, at any time."""

    def __init__(self, groups: ProcessGroups, *, kill_grace_s: float) -> None:
        self._groups = groups
        self._kill_grace_s = kill_grace_s
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_over = False

    def stop(self) -> None:
        """SIGTERM to its group, and SIGKILL after the grace."""
        with self._lock:
            if not self._is_over:
                os.eventfd_write(self._wake, 1)

    def run(self, command: Sequence[str], environment: Mapping[str, str], given: bytes) -> Exit:
        """Run to the end; OSError if it can't be started. What it leaves behind in its group is killed."""
        try:
            with subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            ) as process:
                self._groups.add(process.pid)
                try:
                    return _Watch(process, given, self._wake, self._kill_grace_s).until_exit()
                finally:
                    self._groups.remove(process.pid)
        finally:
            with self._lock:
                self._is_over = True
                os.close(self._wake)


class _Watch:
    """Waits for whatever comes first: its exit, its outputs, room for input, the word to stop, the kill."""

    def __init__(
        self, process: subprocess.Popen[bytes], given: bytes, wake: int, kill_grace_s: float
    ) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018  asked for above
        self._process = process
        self._stdin = process.stdin
        self._left = memoryview(given)
        self._wake = wake
        self._kill_grace_s = kill_grace_s
        self._kill_at: float | None = None
        self._kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._selector = selectors.DefaultSelector()

    def until_exit(self) -> Exit:
        exited = os.pidfd_open(self._process.pid)
        try:
            self._selector.register(exited, selectors.EVENT_READ)
            self._selector.register(self._wake, selectors.EVENT_READ)
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
            os.set_blocking(self._stdin.fileno(), False)
            for descriptor in self._kept:
                self._selector.register(descriptor, selectors.EVENT_READ)
                os.set_blocking(descriptor, False)
            while not self._step(exited):
                pass
        finally:
            self._selector.close()
            os.close(exited)
            # The leader is not reaped yet, so that its group's number can't be another's.
            signal_group(self._process.pid, signal.SIGKILL)
        for descriptor in self._kept:
            any(not self._read(descriptor) for _ in range(_LEFT_READS))
        stdout, stderr = (bytes(tail).decode(errors="replace") for tail in self._kept.values())
        return Exit(self._process.wait(), stdout, stderr)

    def _step(self, exited: int) -> bool:
        """Wait for something and do what it asks for; whether the process has exited."""
        wait_s = None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0.0)
        has_exited = False
        for key, _ in self._selector.select(wait_s):
            if key.fd == exited:
                has_exited = True
            elif key.fd == self._wake:
                os.eventfd_read(self._wake)
                signal_group(self._process.pid, signal.SIGTERM)
                self._kill_at = time.monotonic() + self._kill_grace_s
            elif key.fd not in self._kept:
                self._feed()
            elif not self._read(key.fd):
                self._selector.unregister(key.fd)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            signal_group(self._process.pid, signal.SIGKILL)
            self._kill_at = None
        return has_exited

    def _feed(self) -> None:
        """Write what fits; close the input when all is written, or nobody reads it."""
        try:
            self._left = self._left[os.write(self._stdin.fileno(), self._left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _read(self, descriptor: int) -> bool:
        """Take what is there; False at the end, or when nothing is there now."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        tail = self._kept[descriptor]
        tail += chunk
        del tail[:-KEPT_BYTES]
        return bool(chunk)
