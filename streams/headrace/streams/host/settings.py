"""Settings of the process that runs a processor."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class HostSettings(BaseSettings):
    """How a processor is run; `HEADRACE_HOST_*`. Defaults suit one process on two cores."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_HOST_", frozen=True, extra="forbid")

    state_dir: Path = Path(".headrace/state")
    """RocksDB files. Safe to delete while the process is down: the changelog rebuilds them."""
    max_state_age_s: float = Field(default=3600.0, gt=0)
    """Local files not written for longer are rebuilt from the changelog: half of the time for which the
    changelog keeps deletions, so that no deletion is missed."""
    block_cache_bytes: int = Field(default=4 << 20, gt=0)
    write_buffer_bytes: int = Field(default=8 << 20, gt=0)
    """Of all partitions together, as the block cache is. Memory is flat once both are full: what is kept of a
    finished attempt is on disk."""

    batch_max_records: int = Field(default=2000, ge=1)
    """Records taken at once. Bigger batches amortize the two acknowledgements that each waits for."""
    changelog_batch_bytes: int = Field(default=8 << 20, ge=1 << 16)
    """A `handle` call whose changes fit is written whole or not at all."""
    max_output_bytes: int = Field(default=9 << 20, ge=1 << 16)

    instance_id: str | None = Field(default=None, min_length=1)
    """Static group membership, if set; unique in the group. Started again within the session timeout, the
    process has its partitions back at once; in return its partitions wait for that timeout when it stops."""

    commit_interval_s: float = Field(default=1.0, gt=0)
    tick_interval_s: float = Field(default=0.5, gt=0)
    fetch_max_wait_s: float = Field(default=0.1, gt=0)
    session_timeout_s: float = Field(default=10.0, gt=0)
    heartbeat_interval_s: float = Field(default=2.0, gt=0)
    rebalance_timeout_s: float = Field(default=60.0, gt=0)
    request_timeout_s: float = Field(default=30.0, gt=0)
    startup_timeout_s: float = Field(default=120.0, gt=0)
    """For the source topics to be there; an absent broker is waited for without end."""
    shutdown_timeout_s: float = Field(default=12.0, gt=0)
    """For the batch in hand and leaving the group. With Kafka away it passes in full: shorter than the 20 s
    after which whoever stops us may kill us."""
    watchdog_s: float = Field(default=60.0, gt=0)
    """Without progress for so long while there is something to do, the process ends with an error."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
