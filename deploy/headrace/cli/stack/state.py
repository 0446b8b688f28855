"""What the supervisor says of itself, in `HOME/stack.json`, and the lock that makes it the only one there.

The file is replaced whole. It may be stale, after a power cut or a kill -9; a reader tells by the
supervisor's process identity, which no later process shares.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.cli.stack.process import ProcessId
from headrace.schemas.errors import FatalError

STATE_FILE = "stack.json"
_LOCK_FILE = "stack.lock"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Endpoints(_Model):
    """Where clients find the stack."""

    kafka_bootstrap_servers: str
    clickhouse_host: str
    clickhouse_port: int

    def environment(self) -> dict[str, str]:
        """The variables that lead headrace's own settings there."""
        return {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka_bootstrap_servers,
            "HEADRACE_CLICKHOUSE_HOST": self.clickhouse_host,
            "HEADRACE_CLICKHOUSE_PORT": str(self.clickhouse_port),
        }


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Condition(StrEnum):
    RUNNING = "running"
    STARTING = "starting"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    EXTERNAL = "external"
    """Ours to use, not to run."""


class ServiceState(_Model):
    name: str
    condition: Condition
    process: ProcessId | None = None
    endpoint: str = ""
    num_restarts: int = 0
    ports: Mapping[str, int] = Field(default_factory=dict)
    data_path: Path | None = None
    log_path: Path | None = None

    @property
    def actual(self) -> Condition:
        """The condition now: the file may be older than a death."""
        if self.condition is Condition.RUNNING and (self.process is None or not self.process.alive()):
            return Condition.STOPPED
        return self.condition

    def data_bytes(self) -> int:
        """Bytes on disk; sparse files count what they take."""
        if self.data_path is None:
            return 0
        total = 0
        for folder, _, names in os.walk(self.data_path):
            for name in names:
                try:
                    total += (Path(folder) / name).lstat().st_blocks * 512
                except FileNotFoundError:
                    continue
        return total


class StackState(_Model):
    supervisor: ProcessId
    phase: Phase
    endpoints: Endpoints | None = None
    services: tuple[ServiceState, ...] = ()
    error: str = ""

    @property
    def alive(self) -> bool:
        """Whether the supervisor that wrote this still runs."""
        return self.supervisor.alive()

    def ports(self, service: str) -> Mapping[str, int]:
        return next((s.ports for s in self.services if s.name == service), {})

    def save(self, home: Path) -> None:
        scratch = home / f".{STATE_FILE}.new"
        scratch.write_text(self.model_dump_json(indent=2) + "\n")
        scratch.replace(home / STATE_FILE)


def load(home: Path) -> StackState | None:
    """The last state written there, stale or not; None if there is none that this version can read."""
    try:
        return StackState.model_validate_json((home / STATE_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def running_endpoints(home: Path) -> Endpoints | None:
    """Where the stack of that home is to be found; None unless it runs and is ready."""
    state = load(home)
    return state.endpoints if state and state.phase is Phase.READY and state.alive else None


@contextmanager
def lock(home: Path) -> Iterator[None]:
    """Be the only supervisor of `home`, until death at the latest. Raises FatalError if there is another."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / _LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            state = load(home)
            who = f", by process {state.supervisor.pid}" if state and state.alive else ""
            raise FatalError(
                f"a stack already runs in {home}{who}: `headrace status` shows it, `headrace down` stops it; "
                "for another one beside it set HEADRACE_HOME"
            ) from None
        yield
