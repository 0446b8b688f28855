"""A proxy as a process, and an upstream in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from tests.pipeline import wait_until

from headrace.cli.stack import ports
from headrace.cli.stack.processor import ProcessorProcess
from headrace.streams.settings import KafkaSettings

ProcessT = TypeVar("ProcessT", bound=ProcessorProcess)

ROOT = Path(__file__).parents[2]


class ProxyProcess(ProcessorProcess):
    """`headrace proxy ARGUMENTS`, on a port that it keeps over restarts. Not started yet."""

    def __init__(
        self, folder: Path, kafka: KafkaSettings, *upstreams: str, arguments: Sequence[str] = (), **env: str
    ) -> None:
        """`env` without its prefix: `late_s="1"`."""
        self.port = ports.pick()
        self.url = f"http://127.0.0.1:{self.port}"
        given = [word for url in upstreams for word in ("--upstream", url)]
        super().__init__(
            "proxy",
            folder,
            env={
                "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "HEADRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
                **{f"HEADRACE_PROXY_{name.upper()}": value for name, value in env.items()},
            },
            arguments=[*given, "--port", str(self.port), *arguments],
        )

    def get(self, path: str) -> httpx.Response | None:
        """None while nobody answers."""
        try:
            return httpx.get(self.url + path, timeout=5, trust_env=False)
        except httpx.TransportError:
            return None

    def is_ready(self) -> bool:
        answer = self.get("/readyz")
        return answer is not None and answer.status_code == 200

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_ready() or not self.running, what="the proxy to be ready")
        assert self.running, self.tail()

    def exited(self) -> int:
        wait_until(lambda: not self.running, what="the proxy's exit")
        assert self.exit_status is not None
        return self.exit_status

    def metric(self, name: str) -> float:
        """The sum over its labels."""
        answer = self.get("/metrics")
        assert answer is not None
        lines = [line.split() for line in answer.text.splitlines()]
        return sum(float(words[-1]) for words in lines if words[0].partition("{")[0] == name)

    def resident_mib(self) -> float:
        (line,) = [
            line
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        ]
        return int(line.split()[1]) / 1024

    def log(self) -> str:
        return self.log_path.read_text()


@contextmanager
def a_process(process: ProcessT) -> Iterator[ProcessT]:
    """Started; what it said is shown if something fails."""
    is_failed = True
    try:
        yield process.start()
        is_failed = False
    finally:
        process.kill()
        if is_failed:
            print(f"--- {process.root.name}, exit status {process.exit_status}\n{process.tail()}")


@contextmanager
def upstream_process() -> Iterator[str]:
    """The URL of a fake vLLM."""
    command = [sys.executable, "-m", "tests.proxy.fake_vllm"]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
