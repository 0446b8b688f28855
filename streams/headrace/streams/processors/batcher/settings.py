"""Settings of the batcher: when a group is whole, which groups may train, how large a batch is."""

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class BatcherSettings(BaseSettings):
    """Environment: `HEADRACE_BATCHER_*`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_BATCHER_", frozen=True, extra="forbid")

    group_deadline_s: float = Field(default=900.0, gt=0)
    """From a group's first trajectory on: how long it may wait for the others (C14)."""
    on_deadline: Literal["train", "drop"] = "train"
    """What becomes of a group that is not whole by then: it trains with what is there, or is dropped."""
    min_rollouts: int = Field(default=1, ge=1)
    """Accepted rollouts without which a group does not train."""
    require_contrast: bool = True
    """Leave out groups in which all did alike, by outcome and by the rewards credited to calls: relative to
    each other they teach nothing. Supervised training wants them: false."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Versions by which a group's oldest call may be behind the newest that the log has shown."""

    batch_groups: int = Field(default=16, ge=1)
    """A batch is closed when it has so many groups."""
    batch_tokens: int = Field(default=1 << 20, ge=1)
    """And before it has more tokens than these; a group that has more by itself is left out."""
    batch_wait_s: float = Field(default=120.0, gt=0)
    """How long a group may wait in a batch that is not full."""

    finished_retention_s: float = Field(default=8 * 24 * 3600.0, gt=0)
    """How long a finished group is known as such: longer than the topic keeps its trajectories."""
