"""Environments of peers: each its own, made once and kept in a cache folder."""

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.bench.parts import say

from headrace.cli.stack.settings import StackSettings


def environment(name: str, requirement: str, *, megabytes: int) -> Path:
    """Its folder of programs, with what is required. subprocess.CalledProcessError if it can't be made."""
    folder = StackSettings().cache / name
    programs, mark = folder / "bin", folder / requirement
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            say(f"installing {requirement} into {folder}, about {megabytes} MB")
            uv = [sys.executable, "-m", "uv"]
            for command in (
                [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
                [*uv, "pip", "install", "--quiet", "--python", str(programs / "python"), requirement],
            ):
                subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
            mark.touch()
    return programs
