"""Agent-Lightning as a peer, in an environment of its own, made once and kept in a cache folder."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.figures import Peer
from tests.bench.parts import say

from headrace.cli.stack.settings import StackSettings

REQUIREMENT = "agentlightning==0.3.0"
NAME = "agentlightning_http"

_SCRIPT = Path(__file__).with_name("agentlightning_store.py")
_SPANS = 2_000
_CONCURRENCY = 16
"""Of 1, 16 and 64, the one at which it is fastest."""
_TEXT_BYTES = 700
"""Makes a span of about 1 KB as JSON."""
_LIMIT_S = 300


def span_store() -> Peer | None:
    """Spans per second into its store; None, with the reason said, where it can't be installed or run."""
    try:
        python = _environment(StackSettings().cache / "bench-agentlightning")
        say("span_store: Agent-Lightning starts, which takes half a minute")
        done = subprocess.run(
            [python, str(_SCRIPT), str(_SPANS), str(_CONCURRENCY), str(_TEXT_BYTES)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
            # Else its LiteLLM waits for a price list from the network.
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )
    except subprocess.CalledProcessError as error:
        say(f"span_store: no peer, {error}\n{str(error.stderr)[-2000:]}")
        return None
    except subprocess.TimeoutExpired as error:
        say(f"span_store: no peer, {error}")
        return None
    result = json.loads(done.stdout.splitlines()[-1])
    return Peer(NAME, result["spans"] / result["seconds"])


def _environment(folder: Path) -> str:
    """Its Python."""
    python, mark = folder / "bin" / "python", folder / REQUIREMENT
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            say(f"span_store: installing {REQUIREMENT} into {folder}, about 600 MB")
            uv = [sys.executable, "-m", "uv"]
            for command in (
                [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
                [*uv, "pip", "install", "--quiet", "--python", str(python), REQUIREMENT],
            ):
                subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
            mark.touch()
    return str(python)
