"""A stream processor of headrace as a child process: `headrace NAME`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.cli.stack.service import Service


class ProcessorProcess(Service):
    """Counts as ready once it runs: a processor waits for its dependencies by itself."""

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        env: Mapping[str, str],
        arguments: Sequence[str] = (),
        log_dir: Path | None = None,
        stop_timeout_s: float = 20.0,
    ) -> None:
        super().__init__(root, log_dir=log_dir, name=name, stop_timeout_s=stop_timeout_s)
        self._env = env
        self._arguments = arguments

    @property
    def endpoint(self) -> str:
        return ""

    @property
    def waits_for(self) -> str:
        return f"the process {self.name!r} to run"

    @property
    def cwd(self) -> Path:
        # Ours: paths in the environment (a CA file) may be relative.
        return Path.cwd()

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-m", "headrace.cli", self.name, *self._arguments]

    def _environment(self) -> Mapping[str, str]:
        return {"PYTHONUNBUFFERED": "1", **self._env}

    def _prepare(self) -> None:
        """Nothing: its settings come by the environment."""

    def _is_ready(self) -> bool:
        return True
