"""How the sink batches."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SinkSettings(BaseSettings):
    """Environment: `HEADRACE_SINK_*`."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_SINK_", frozen=True, extra="forbid")

    linger_s: float = Field(default=0.4, gt=0)
    """How long the first record of a batch waits for company: freshness against the number of inserts."""
    max_batch_rows: int = Field(default=25_000, ge=1, le=50_000)
    """Of one insert."""
    max_buffer_rows: int = Field(default=50_000, ge=1)
    max_buffer_bytes: int = Field(default=64 * 1024 * 1024, ge=1)
    num_writers: int = Field(default=2, ge=1, le=32)
    """Inserts at a time, each on its own connection."""
    commit_interval_s: float = Field(default=1.0, gt=0)
    """When idle: progress is otherwise committed together with the next intent."""
    metrics_port: int | None = None
    """Prometheus, on loopback; None: none."""
