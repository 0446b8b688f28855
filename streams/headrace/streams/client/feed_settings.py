"""Settings of a feeder: how much of what is fed, and how far ahead of the trainer."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class FeederSettings(BaseSettings):
    """Environment: `HEADRACE_FEEDER_*`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_FEEDER_", frozen=True, extra="forbid")

    run: str = Field(default="run", min_length=1, max_length=200)
    """Its name: ids follow from it, from when the run began, and from the place of a task."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts of each task in one group."""
    epochs: int = Field(default=1, ge=1)
    seed: int = 0
    """Of the order of tasks, another one in each epoch."""
    shuffle: bool = True

    max_in_flight_groups: int = Field(default=64, ge=1)
    """Groups enqueued that have no verdict yet. Below the batcher's batch_groups, batches wait to be full."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Versions that a group may be behind when it is trained. With `groups_per_version` it bounds how far
    feeding goes ahead of training: (max_staleness + 1) · groups_per_version groups."""
    groups_per_version: int | None = Field(default=None, ge=1)
    """Groups that the trainer makes a version of: its batches a version, times their groups."""

    resource: str = "policy"
    """The weights that are trained, as `resources` names them."""
    val_every: int = Field(default=0, ge=0)
    """Versions from one round of validation to the next; 0: none."""
    val_samples: int = Field(default=1, ge=1)
    """Rollouts of each validation task."""
    val_pinned: bool = True
    """Validation asks for the version that it is of, and not for the newest of the moment; the proxy does not
    obey that, since it always serves the newest weights."""
    val_at_start: bool = False
    """A round before any training."""

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.max_staleness is None) != (self.groups_per_version is None):
            raise ValueError(
                "max_staleness and groups_per_version bound feeding together: give both, or none"
            )
        return self

    @property
    def max_ahead_groups(self) -> int | None:
        """Groups enqueued and not trained yet; None: no bound."""
        if self.max_staleness is None or self.groups_per_version is None:
            return None
        return (self.max_staleness + 1) * self.groups_per_version
