"""What a process of any spread does with a model, and what is kept of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.trainer.policy.models import NUM_STEPS, SETTINGS, batches, loss

from headrace.trainer.policy import Parallel, Policy, StepOutput

CHECKPOINT_AFTER = NUM_STEPS // 2
CHECKPOINTED = ("llama-tied", "qwen3")


@dataclass
class Result:
    """Of one model, on one rank."""

    logprobs: list[torch.Tensor]
    """Of this rank's micro-batches of the first step."""
    loaded: dict[str, torch.Tensor] | None
    """Exported before any step."""
    steps: list[StepOutput]
    weights: dict[str, torch.Tensor] | None
    """Exported after all steps."""


def run_steps(policy: Policy, first: int = 0, after: Callable[[int], None] | None = None) -> list[StepOutput]:
    found = []
    for step in range(first, NUM_STEPS):
        found.append(policy.train(batches(step)[policy.dp_rank :: policy.dp_size], loss))
        if after:
            after(step + 1)
    return found


def run_model(parallel: Parallel, folder: Path, checkpoint: Path | None = None) -> Result:
    policy = Policy(folder, parallel, SETTINGS, dtype=torch.float32)
    logprobs = policy.logprobs(batches(0)[policy.dp_rank :: policy.dp_size])
    logprobs = [tensor.cpu() for tensor in logprobs]
    loaded = policy.hf_state_dict()

    def save(num_steps: int) -> None:
        if checkpoint and num_steps == CHECKPOINT_AFTER:
            checkpoint.mkdir(parents=True, exist_ok=True)
            policy.save(checkpoint)

    steps = run_steps(policy, after=save)
    return Result(logprobs, loaded, steps, policy.hf_state_dict())


def resume(parallel: Parallel, folder: Path, checkpoint: Path) -> dict[str, torch.Tensor] | None:
    policy = Policy(folder, parallel, SETTINGS, dtype=torch.float32)
    policy.load(checkpoint)
    run_steps(policy, first=policy.num_steps)
    return policy.hf_state_dict()
