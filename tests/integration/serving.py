"""A proxy as a process, in front of an engine."""

import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from headrace.cli.stack.ports import LOOPBACK, pick
from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.ids import uuid7


class ProxyProcess(ProcessorProcess):
    """`headrace proxy --upstream URL ARGUMENTS`; started, it takes calls."""

    def __init__(
        self, root: Path, upstream: str, *, env: Mapping[str, str], arguments: Sequence[str] = ()
    ) -> None:
        self.port = pick(None)
        where = ["--upstream", upstream, "--port", str(self.port)]
        super().__init__("proxy", root, env=env, arguments=[*where, *arguments])

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def waits_for(self) -> str:
        return f"the proxy at {self.endpoint} to be ready"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/readyz", timeout=1):  # noqa: S310
                return True
        except OSError:
            return False

    def open(self) -> str:
        """The base URL, without /v1, of an attempt of its own."""
        body = {"rollout_id": uuid7(), "attempt_id": uuid7()}
        opened = httpx.post(f"{self.endpoint}/attempts", json=body, trust_env=False)
        assert opened.status_code == 201
        return self.endpoint + str(opened.json()["path"])

    def serves(self) -> str | None:
        """The version of its one engine, where that takes calls."""
        (engine,) = httpx.get(f"{self.endpoint}/readyz", trust_env=False).json()["engines"]
        return str(engine["version"]) if engine["state"] == "serving" else None
