"""Settings of a proxy."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class ProxySettings(BaseSettings):
    """Environment: `HEADRACE_PROXY_*`; the command's options win."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_PROXY_", frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8500, ge=0, le=65535)
    """0: any that is free."""
    upstreams: Annotated[tuple[str, ...], NoDecode] = ()
    """Base URLs of the engines, with or without /v1; in the environment with commas between, or as JSON. No
    request can choose another.
    """
    upstream_kind: Literal["auto", "vllm", "openai"] = "auto"
    """vllm gives token ids and takes new weights; openai is any compatible API: kept, never trained on."""
    upstream_api_key: SecretStr | None = None
    weights: str | None = "policy"
    """The resource whose versions the engines follow; None, or empty: none."""
    keys_file: Path | None = None
    """Of API keys; None: whoever reaches the proxy may use it, so only loopback is listened on."""
    allow_anonymous: bool = False
    """Listen beyond loopback without keys."""

    max_calls: int = Field(default=1024, ge=1)
    """At a time; past it a call is answered with 429."""
    max_engine_calls: int = Field(default=256, ge=1)
    """At a time and engine; more wait."""
    max_requests: int = Field(default=256, ge=1)
    """Traces, rewards, counts of tokens and attempts to open, at a time; past it they get 429."""
    max_kept_response_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """What `previous_response_id` can lead to, of all attempts; past it what was used last goes last."""
    max_attempts: int = Field(default=100_000, ge=1)
    """Open at a time."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_header_bytes: int = Field(default=32 * 1024, ge=1024)

    call_timeout_s: float = Field(default=900.0, gt=0)
    """For a call, from its admission to its last token."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    idle_timeout_s: float = Field(default=300.0, gt=0)
    """Between two pieces of a stream."""
    head_timeout_s: float = Field(default=20.0, gt=0)
    """For a new connection to send anything, and for a request's head to be whole."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """For the client to send its request."""
    send_timeout_s: float = Field(default=60.0, gt=0)
    """For the client to take a piece of its answer; then its connection is ended."""
    admission_timeout_s: float = Field(default=60.0, gt=0)
    """For an engine to be free: while weights are loaded, calls wait."""
    delivery_timeout_s: float = Field(default=10.0, gt=0)
    """For Kafka to acknowledge; then the call is answered with 503."""
    late_s: float = Field(default=3.0, gt=0)
    """An acknowledgement that takes longer: new calls are answered with 503."""
    close_timeout_s: float = Field(default=15.0, gt=0)
    """For the events of an attempt to be acknowledged at its end."""
    idle_attempt_s: float = Field(default=6 * 3600.0, gt=0)
    """An attempt that nobody has used for so long is closed."""
    drain_s: float = Field(default=60.0, gt=0)
    """For an engine's calls to end before new weights are loaded; then they are cut."""
    check_s: float = Field(default=5.0, gt=0)
    """Between two looks at an engine's health and weights."""
    retry_s: float = Field(default=15.0, gt=0)
    """Before an engine that failed to load is tried again."""
    max_gap: float = Field(default=0.5, gt=0)
    """Mean difference of logprobs between an engine and the trainer, for the probe that a version carries;
    with more the engine is out. With both in float32 it is about 1e-5; in bfloat16 it may be a tenth.
    """
    stop_timeout_s: float = Field(default=30.0, ge=0)
    """For running calls after SIGTERM; then they are cut, and recorded so."""
    startup_timeout_s: float = Field(default=120.0, gt=0)
    """For Kafka's topics to be there."""
    linger_ms: float = Field(default=0.0, ge=0)

    @field_validator("upstreams", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        if not isinstance(given, str):
            return given
        if given.lstrip().startswith("["):
            return json.loads(given)
        return [url.strip() for url in given.split(",") if url.strip()]
