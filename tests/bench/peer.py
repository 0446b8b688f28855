"""Agent-Lightning as a peer, in an environment of its own."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.bench.environment import environment
from tests.bench.figures import Peer
from tests.bench.parts import say

REQUIREMENT = "agentlightning==0.3.0"
NAME = "agentlightning_http"

_SCRIPT = Path(__file__).with_name("agentlightning_store.py")
_ROLLOUTS_SCRIPT = _SCRIPT.with_name("agentlightning_rollouts.py")
_ROLLOUTS = 400
_SPANS = 2_000
_CONCURRENCY = 16
"""Of 1, 16 and 64, the one at which it is fastest."""
_TEXT_BYTES = 700
"""Makes a span of about 1 KB as JSON."""
_LIMIT_S = 300


def span_store() -> Peer | None:
    """Spans per second into its store; None, with the reason said, where it can't be installed or run."""
    result = _run("span_store", _SCRIPT, _SPANS, _CONCURRENCY, _TEXT_BYTES)
    return Peer(NAME, result["spans"] / result["seconds"]) if result else None


def rollouts(concurrent: Iterable[int]) -> dict[int, Peer]:
    """Rollouts per second by the number of its runners; empty, with the reason said, as above."""
    result = _run("rollouts", _ROLLOUTS_SCRIPT, _ROLLOUTS, *concurrent) or {}
    return {
        int(num): Peer(f"agentlightning_store_rollouts_per_s_{num}", rate) for num, rate in result.items()
    }


def _run(what: str, script: Path, *arguments: int) -> dict[str, float] | None:
    """What the script says on its last line."""
    try:
        programs = environment("bench-agentlightning", REQUIREMENT, megabytes=600)
        say(f"{what}: Agent-Lightning starts, which takes half a minute")
        done = subprocess.run(
            [programs / "python", str(script), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
            env={
                **os.environ,
                # Else its LiteLLM waits for a price list from the network.
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                # The scripts share some of their own.
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
        )
    except subprocess.CalledProcessError as error:
        say(f"{what}: no peer, {error}\n{str(error.stderr)[-2000:]}")
        return None
    except subprocess.TimeoutExpired as error:
        say(f"{what}: no peer, {error}")
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
