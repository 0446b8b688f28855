"""How the training demo trains: found by trial over several seeds, on samples a version or two old."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.cli.demo.boxes import FORM
from headrace.cli.demo.figures import Figures

MAX_GAP = 1e-3
"""Between a logprob of vLLM's and one of the trainer's, of the same weights."""
MAX_MEAN_GAP = 1e-4
"""In the mean over a version's probe."""
CREDIT_RULE = "rewards@1"
"""Each call is judged by its own box: half as many rollouts as by the outcome of both."""
AGENT = "headrace.cli.demo.boxes_agent:open_boxes"


@dataclass(frozen=True)
class Recipe:
    model: str
    accuracy: float | None
    """Of the last rollouts: then it has learnt. None: it isn't asked to."""
    max_rollouts: int
    max_batches: int | None
    window: int
    """How many rollouts count as the last."""
    max_model_len: int
    group_size: int = 16
    batch_groups: int = 12
    max_staleness: int = 0
    """On two cores nothing is gained by sampling while training; and calls of the weights in training show
    how far engine and trainer differ."""
    concurrency: int = 48
    require_contrast: bool = True
    form: str = ""
    """Of answers, shown at the beginning of each conversation, where no warm start has taught it."""
    lr: float = 2e-3
    num_epochs: int = 6
    entropy_coef: float = 0.01
    """More of it, and the policy begins to wander when most groups have nothing left to learn."""

    def environment(self) -> Mapping[str, str]:
        """For the processors."""
        return {
            "HEADRACE_ASSEMBLER_STRAGGLER_GRACE_S": "5",
            "HEADRACE_BATCHER_BATCH_GROUPS": str(self.batch_groups),
            "HEADRACE_BATCHER_MAX_STALENESS": str(self.max_staleness),
            "HEADRACE_BATCHER_REQUIRE_CONTRAST": str(self.require_contrast).lower(),
            "HEADRACE_BATCHER_BATCH_WAIT_S": "20",
            "HEADRACE_BATCHER_GROUP_DEADLINE_S": "120",
        }

    def is_over(self, figures: Figures) -> bool:
        """It has learnt, or is at its limit."""
        has_learnt = (
            self.accuracy is not None
            and figures.num_rollouts >= self.window
            and (figures.accuracy or 0.0) >= self.accuracy
        )
        at_limit = self.max_batches is not None and (figures.policy_version or 0) > self.max_batches
        return has_learnt or at_limit or figures.num_rollouts >= self.max_rollouts

    def configuration(self, run: str, model: Path, output: Path, seed: int) -> str:
        """The trainer's, in TOML."""
        return f"""\
[run]
name = "{run}"
seed = {seed}
output = "{output}"

[model]
path = "{model}"

[optimizer]
lr = {self.lr}

[algorithm]
name = "grpo"
reward = "step"
old_logprobs = "policy"
num_epochs = {self.num_epochs}
entropy_coef = {self.entropy_coef}

[data]
max_staleness = {self.max_staleness}

[checkpoint]
every_steps = {5 * self.num_epochs}

[publish]
every_steps = {self.num_epochs}
keep = 4
"""


_SMALL = Recipe(
    model="small", accuracy=0.95, max_rollouts=20_000, max_batches=None, window=320, max_model_len=64
)
_SMOLLM2 = replace(
    _SMALL,
    model="smollm2",
    accuracy=None,
    max_rollouts=400,
    max_batches=2,
    window=16,
    max_model_len=256,
    group_size=4,
    batch_groups=4,
    concurrency=8,
    require_contrast=False,
    form=FORM,
    lr=1e-5,
    num_epochs=1,
    entropy_coef=0.0,
)


def recipe_for(model: str, *, accuracy: float | None = None, max_rollouts: int | None = None) -> Recipe:
    """With what is asked for otherwise."""
    found = _SMALL if model == "small" else _SMOLLM2
    return replace(
        found,
        accuracy=found.accuracy if accuracy is None else accuracy,
        max_rollouts=max_rollouts or found.max_rollouts,
    )
