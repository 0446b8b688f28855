"""The two processes that a proxy stands between: the load, and the upstream."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson
from tests.bench.proxy_load import Done, Work

from headrace.schemas.errors import FatalError

_ROOT = Path(__file__).parents[2]


class Load:
    """tests.bench.proxy_load."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def do(self, work: Work) -> Done:
        """FatalError if a call fails."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(orjson.dumps(asdict(work)) + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise FatalError(
                f"the load on {work.url} failed: {self._process.communicate()[1].decode()[-2000:]}"
            )
        return Done(**orjson.loads(line))


@contextmanager
def load() -> Iterator[Load]:
    with _python("tests.bench.proxy_load") as process:
        yield Load(process)


@contextmanager
def upstream() -> Iterator[str]:
    """Its URL."""
    with _python("tests.bench.proxy_upstream") as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        if not url:
            raise FatalError(f"the upstream did not start: {process.communicate()[1].decode()[-2000:]}")
        yield url


@contextmanager
def _python(module: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Each ends with its standard input."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
