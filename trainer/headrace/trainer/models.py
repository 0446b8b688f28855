"""Models of a run's settings: the policy in training, and the reference of a KL term."""

from pathlib import Path

import torch

from headrace.schemas.errors import FatalError
from headrace.trainer.algorithms import Algorithm
from headrace.trainer.policy import (
    OptimizerSettings,
    Parallel,
    Policy,
    ScheduleSettings,
    UnsupportedModelError,
)
from headrace.trainer.settings import TrainSettings

DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


def make_policy(settings: TrainSettings, parallel: Parallel) -> Policy:
    """FatalError for a folder that holds no model that can be trained."""
    optimizer = settings.optimizer
    schedule = ScheduleSettings(
        decay=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        num_steps=optimizer.total_steps or 1,
        min_lr=0.0,
    )
    return _made(
        settings,
        parallel,
        settings.model.path,
        OptimizerSettings(
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            max_grad_norm=optimizer.clip or None,
            schedule=schedule,
        ),
    )


def make_reference(settings: TrainSettings, parallel: Parallel, algorithm: Algorithm) -> Policy | None:
    """The fixed model of the KL term, where there is one."""
    if not algorithm.needs_reference_logprobs:
        return None
    return _made(settings, parallel, settings.model.reference or settings.model.path, None)


def _made(
    settings: TrainSettings, parallel: Parallel, path: Path, optimizer: OptimizerSettings | None
) -> Policy:
    try:
        return Policy(
            path,
            parallel,
            optimizer,
            temperature=settings.model.temperature,
            dtype=DTYPES[settings.model.dtype],
            seed=settings.run.seed,
        )
    except (OSError, ValueError, UnsupportedModelError) as error:
        raise FatalError(f"no model to train in {path}: {error}") from error
