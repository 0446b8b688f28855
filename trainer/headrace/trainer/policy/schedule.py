"""The learning rate of a step: a warm-up, then constant or falling to a floor."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ScheduleSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    decay: Literal["constant", "cosine", "linear"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    num_steps: int = Field(1000, ge=1)
    """The last step of a decay; later ones keep the floor."""
    min_lr: float = Field(0.0, ge=0)


def learning_rate(settings: ScheduleSettings, lr: float, step: int) -> float:
    """Of step `step`, from 1. Rises linearly to `lr` at step `warmup_steps`; `min_lr` from `num_steps` on."""
    if step <= settings.warmup_steps:
        return lr * step / settings.warmup_steps
    if settings.decay == "constant":
        return lr
    span = max(1, settings.num_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / span)
    left = 1.0 - progress if settings.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.min_lr + (lr - settings.min_lr) * left
