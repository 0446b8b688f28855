"""LiteLLM's proxy as a peer: one process, in an environment of its own.

It is set up to be fast: Granian as the server, which measured faster than its default, uvicorn, with h11 and
with httptools; one worker, log level ERROR, no callbacks, retries, database, keys, telemetry or user
interface, and its price list from its own package.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.bench.environment import environment
from tests.bench.parts import say

from headrace.cli.stack.ports import pick
from headrace.cli.stack.service import Service, ServiceError

REQUIREMENT = "litellm[proxy]==1.108.7"

_CONFIG = """\
model_list:
  - model_name: fake
    litellm_params:
      model: openai/fake
      api_base: {upstream}/v1
      api_key: none
litellm_settings:
  telemetry: false
  callbacks: []
  num_retries: 0
  request_timeout: 60
general_settings:
  disable_spend_logs: true
"""


class LiteLLMProxy(Service):
    """Ready when it says that it lives."""

    def __init__(self, root: Path, programs: Path, upstream: str) -> None:
        super().__init__(root, name="litellm", start_timeout_s=120.0)
        self._program = programs / "litellm"
        self._upstream = upstream
        self._port = pick()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def waits_for(self) -> str:
        return f"an answer at {self.endpoint}"

    def _command(self) -> Sequence[str]:
        where = ["--host", "127.0.0.1", "--port", str(self._port)]
        return [
            str(self._program), "--config", "config.yaml", *where, "--num_workers", "1", "--run_granian",
        ]  # fmt: skip

    def _environment(self) -> Mapping[str, str]:
        return {
            "DISABLE_ADMIN_UI": "True",
            # As ours: without keys, for whoever reaches it.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            # Else it waits for a price list from the network.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
        }

    def _prepare(self) -> None:
        (self.root / "config.yaml").write_text(_CONFIG.format(upstream=self._upstream))

    def _is_ready(self) -> bool:
        try:
            httpx.get(f"{self.endpoint}/health/liveliness", timeout=1).raise_for_status()
        except httpx.HTTPError:
            return False
        return True


@contextmanager
def litellm_proxy(root: Path, upstream: str) -> Iterator[str | None]:
    """Its URL; None, with the reason said, where it can't be installed or run."""
    try:
        proxy = LiteLLMProxy(root, environment("bench-litellm", REQUIREMENT, megabytes=580), upstream)
        say("proxy: LiteLLM starts, which takes a quarter of a minute")
        proxy.start()
    except subprocess.CalledProcessError as error:
        say(f"proxy: no peer, {error}\n{str(error.stderr)[-2000:]}")
        yield None
    except ServiceError as error:
        say(f"proxy: no peer, {error}")
        yield None
    else:
        with proxy:
            yield proxy.endpoint
