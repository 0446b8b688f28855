"""Processes of one run, as torchrun starts them, on this machine."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 280


def torchrun(module: str, num_processes: int, arguments: Sequence[str]) -> None:
    """Return when all have ended; AssertionError with the end of what they said if one failed."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(num_processes), "-m", module, *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"torchrun ended with {done.returncode}:\n{done.stderr[-8000:]}"


def results_of(folder: Path) -> list[dict[str, Any]]:
    """What the ranks left, by rank."""
    number = len(list(folder.glob("rank-*.pt")))
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(number)]
