"""Agents in any language: a command for each attempt, with the task on its standard input.

Its reward is its last line (rewards.read_last_line) or comes over the attempt's URL; another exit status than
0 is a failed attempt, with the end of its standard error as the error.
"""

import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from headrace.streams.runner.agent import MAX_ERROR_CHARS, bounded, describe_error
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_server import AttemptServer
from headrace.streams.runner.child_process import ChildProcess, Exit
from headrace.streams.runner.command_environment import command_environment, resources_json
from headrace.streams.runner.execution import Done
from headrace.streams.runner.process_groups import ProcessGroups
from headrace.streams.runner.rewards import read_last_line
from headrace.streams.runner.thread_agents import DaemonThreads


class CommandExecution:
    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    def stop(self) -> None:
        self._child.stop()

    def abandon(self) -> None:
        """Even SIGKILL did not end it: the kernel holds it."""


class CommandAgents:
    """An Executor, and a context manager."""

    def __init__(
        self,
        command: Sequence[str],
        server: AttemptServer,
        *,
        environment: Mapping[str, str],
        kill_grace_s: float = 1.0,
    ) -> None:
        self._command = list(command)
        self._server = server
        self._environment = environment
        self._kill_grace_s = kill_grace_s
        self._groups = ProcessGroups()
        self._threads = DaemonThreads("headrace-command")
        self._folder = Path()

    @property
    def stop_grace_s(self) -> float:
        return self._kill_grace_s + 1.0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-runner-"))
        self._groups.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._groups.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, attempt: Attempt, done: Done) -> CommandExecution:
        child = ChildProcess(self._groups, kill_grace_s=self._kill_grace_s)
        self._threads.run(lambda: self._run(child, attempt, done))
        return CommandExecution(child)

    def _run(self, child: ChildProcess, attempt: Attempt, done: Done) -> None:
        try:
            error = self._run_command(child, attempt)
        except Exception as raised:  # noqa: BLE001  it is the attempt that failed, not the runner
            error = describe_error(raised)
        done(error)

    def _run_command(self, child: ChildProcess, attempt: Attempt) -> str | None:
        folder = self._folder / attempt.attempt_id
        folder.mkdir()
        task_file, resources_file = folder / "task.json", folder / "resources.json"
        task = attempt.record.task.encode()
        task_file.write_bytes(task)
        resources_file.write_text(resources_json(attempt.resources))
        environment = command_environment(
            self._environment,
            attempt,
            attempt_url=self._server.url_of(attempt),
            task_file=task_file,
            resources_file=resources_file,
            otlp_protocol=self._server.otlp_protocol,
        )
        try:
            with self._server.open(attempt):
                exited = child.run(self._command, environment, task)
        except OSError as error:
            return f"can't start {self._command[0]}: {error.strerror}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if exited.status != 0:
            return _describe(exited)
        attempt.emit_rewards(read_last_line(exited.stdout))
        return None


def _describe(exited: Exit) -> str:
    if exited.status > 0:
        how = f"exit status {exited.status}"
    else:
        how = f"killed by {signal.Signals(-exited.status).name}"
    said = exited.stderr.strip()
    return bounded(f"{how}: {said[-(MAX_ERROR_CHARS - 100) :]}" if said else how)
