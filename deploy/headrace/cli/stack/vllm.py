"""vLLM as a child process: OpenAI's API for one model, on loopback, with the endpoints that take new weights.

On a CPU it starts in a quarter of the time that it takes by itself: its three processes would each compile
all of torch and vLLM where bytecode is not written, and the third is not needed.
"""

import importlib.util
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.cli.stack.ports import LOOPBACK, pick
from headrace.cli.stack.service import Service, ServiceError

_GUARD = Path(__file__).with_name("group_guard.py")


class VllmServer(Service):
    def __init__(
        self,
        root: Path,
        *,
        model: Path,
        model_name: str = "policy",
        port: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 32,
        num_threads: int = 1,
        tool_call_parser: str | None = None,
        bytecode: Path | None = None,
        extra_args: Sequence[str] = (),
        log_dir: Path | None = None,
        start_timeout_s: float = 240.0,
        stop_timeout_s: float = 15.0,
    ) -> None:
        """`model` is a folder as Hugging Face has them; clients ask for it as `model_name`.

        `bytecode` is a folder that keeps what Python compiled, for later starts; by default in `root`. `port`
        is a preference: a taken one is replaced.
        """
        super().__init__(
            root, name="vllm", log_dir=log_dir, start_timeout_s=start_timeout_s, stop_timeout_s=stop_timeout_s
        )
        self.port = pick(port)
        self.model = model.resolve()
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.num_threads = num_threads
        self.tool_call_parser = tool_call_parser
        self.extra_args = tuple(extra_args)
        self._bytecode = (bytecode or self.root / "bytecode").resolve()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"port": self.port}

    @property
    def waits_for(self) -> str:
        return f"vLLM at {self.endpoint} to answer /health"

    def _command(self) -> Sequence[str]:
        # vLLM's engine outlives a server that is killed.
        command = [sys.executable, "-I", "-S", str(_GUARD)]
        command += [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.model), "--served-model-name", self.model_name]
        command += ["--host", LOOPBACK, "--port", str(self.port), "--max-num-seqs", str(self.max_num_seqs)]
        # Logprobs of the distribution that was sampled from: the default takes no heed of the temperature.
        command += ["--dtype", "float32", "--enforce-eager", "--logprobs-mode", "processed_logprobs"]
        # Nor are the model's own defaults for sampling anybody's choice.
        command += ["--generation-config", "vllm"]
        # One line for each call, and others say what was asked for.
        command += ["--disable-uvicorn-access-log", "--no-enable-log-requests"]
        if self.max_model_len is not None:
            command += ["--max-model-len", str(self.max_model_len)]
        if self.tool_call_parser is not None:
            command += ["--enable-auto-tool-choice", "--tool-call-parser", self.tool_call_parser]
        return [*command, *self.extra_args]

    def _environment(self) -> Mapping[str, str]:
        return {
            # The endpoints that pause, load and resume.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # GiB, and no less is possible.
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # The engine's core works itself, without another process for one worker: 6 s and 1 GB less.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": str(self.num_threads),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self._bytecode),
        }

    def _prepare(self) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise ServiceError("vLLM is not installed: pip install 'headrace[serve-cpu]' (see overrides.txt)")
        if not (self.model / "config.json").is_file():
            raise ServiceError(f"there is no model in {self.model}: it has no config.json")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False
