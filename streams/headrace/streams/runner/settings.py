"""Settings of a runner."""

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class RunnerSettings(BaseSettings):
    """Environment: `HEADRACE_RUNNER_*`; the command's options win."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_RUNNER_", frozen=True, extra="forbid")

    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Attempts at a time."""
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """How long running attempts may go on after SIGTERM."""
    kill_grace_s: float = Field(default=1.0, ge=0)
    """Between SIGTERM and SIGKILL to a command at its deadline. The dispatcher ends an attempt 2 s after."""
    max_abandoned: int = Field(default=8, ge=1)
    """Agents that did not end when told to: with so many left behind the process ends, to start afresh."""
    base_url: str | None = None
    """Of an OpenAI-compatible API, for agents; `{attempt_id}` and `{rollout_id}` are filled in."""
    api_key: SecretStr | None = None
    """For it; None: what the environment has for OpenAI and Anthropic."""
    proxy_url: str | None = None
    """Of the proxy, for agents' model calls; it numbers the attempts' events too. Not with base_url."""
    proxy_key: SecretStr | None = None
    """One of its API keys; agents get a token of their attempt's own."""
    proxy_timeout_s: float = Field(default=5.0, gt=0)
    """For the proxy to hand out a sequence id; an attempt that needs one and has none by then has failed."""
    proxy_open_timeout_s: float = Field(default=30.0, gt=0)
    """For it to take in an attempt, while it is away or full."""
    agent_name: str = Field(default="", max_length=200)
    """What calls through the proxy are named by, where they do not name their agent themselves."""
    otel: bool = True
    """Whether spans of OpenTelemetry in this process become events, where its SDK is installed."""
    session_timeout_s: float = Field(default=10.0, gt=0)
    """After which the group counts a runner as dead, and others get the tasks it had not started."""
    linger_ms: float = Field(default=1.0, ge=0)
    delivery_timeout_s: float = Field(default=24 * 3600.0, gt=0)
    """How long Kafka may be away before records count as lost: until then the runner waits for it."""
    startup_timeout_s: float = Field(default=120.0, gt=0)
    """For the topics to be there; an absent broker is waited for without end."""
    flush_timeout_s: float = Field(default=10.0, gt=0)
    """For the last acknowledgements at the end of the process."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Prometheus, on loopback; None: none."""
