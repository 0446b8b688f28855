"""train_tokens_per_s, publish_to_served_s, loop_generation_percent …: the trainer, and its loop.

- train_tokens_per_s: whole optimizer steps of our Policy with GRPO's loss, on 64 sequences of 256 tokens on
  average, in one process on one thread. The peer does the same work by hand, with Hugging Face's model and
  AdamW, in the same process, in turns; the medians of the rounds count. Seconds are of CPU: train_speed says
  why.
- publish_to_served_s: from the call that publishes weights until the proxy's engine serves them; the median.
- loop_*_percent: where the wall time of the demo's loop goes; loop_shares says what is what.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypedDict

import orjson
from tests.bench.figures import Figure, Peer
from tests.bench.loop_shares import shares
from tests.bench.parts import Parts, say

from headrace.cli.demo.recipe import Recipe, recipe_for
from headrace.schemas.errors import FatalError

ROUNDS = 7
SAMPLES = 64
VERSIONS = 9
BATCHES = 8
_ROOT = Path(__file__).parents[2]


class Step(TypedDict):
    cpu_s: float
    wall_s: float
    grad_norm: float


@dataclass(frozen=True)
class Round:
    """A line of train_speed."""

    num_tokens: int
    ours: Step
    theirs: Step


def bench(parts: Parts, scale: float) -> Iterator[Figure]:
    yield _speed(max(1, round(ROUNDS * scale)), max(4, min(SAMPLES, round(10 * SAMPLES * scale))))
    # torch and transformers take seconds to import, and other benches don't need them.
    from tests.bench.weight_publishing import published_to_served_s  # noqa: PLC0415

    with parts.lane("publish") as lane:
        took_s = published_to_served_s(lane, max(1, round(VERSIONS * scale)))
    yield Figure("publish_to_served_s", median(took_s), "s")
    yield from _loop(parts, max(2, round(BATCHES * scale)), _recipe(scale))


def _speed(num_rounds: int, num_samples: int) -> Figure:
    """In a process of its own, whose torch has one thread."""
    rounds: list[Round] = []
    command = [sys.executable, "-m", "tests.bench.train_speed", str(num_rounds), str(num_samples)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            done = Round(**orjson.loads(line))
            rounds.append(done)
            words = f"{_words(done.ours)}, by hand {_words(done.theirs)}"
            say(f"trainer: round {len(rounds)} of {num_rounds}, {done.num_tokens} tokens: {words}")
        if process.wait():
            said.seek(0)
            raise FatalError(f"the training process failed: {said.read().decode()[-2000:]}")
    ours = median(each.num_tokens / each.ours["cpu_s"] for each in rounds)
    theirs = median(each.num_tokens / each.theirs["cpu_s"] for each in rounds)
    return Figure("train_tokens_per_s", ours, "tokens/s", Peer("hf_loop_tokens_per_s", theirs))


def _words(step: Step) -> str:
    return f"{step['cpu_s']:.2f} s of CPU in {step['wall_s']:.2f} s"


def _recipe(scale: float) -> Recipe:
    """The demo's; smaller batches where it is only to be seen that it runs."""
    recipe = recipe_for("small")
    return recipe if scale >= 0.1 else replace(recipe, batch_groups=4, group_size=8)


def _loop(parts: Parts, num_batches: int, recipe: Recipe) -> Iterator[Figure]:
    from tests.bench.demo_loop import play  # noqa: PLC0415

    with parts.lane("loop") as lane:
        # Shares are of the time after the first batch.
        played = play(lane, recipe, num_batches + 1)
        found = shares(played.steps, played.events)
    for name, value in vars(found).items():
        yield Figure(f"loop_{name}_percent", value, "%")
