"""What a command finds in its environment: who it is, where events go, where the model is."""

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.schemas.records import ResourceVersion
from headrace.streams.runner.attempt import Attempt

MAX_RESOURCES_BYTES = 96 * 1024
"""Linux takes no variable of 128 KiB or more; larger resources are in HEADRACE_RESOURCES_FILE alone."""

_OURS = (
    "HEADRACE_KAFKA_",
    "HEADRACE_CLICKHOUSE_",
    "HEADRACE_SCHEMA_REGISTRY_",
    "HEADRACE_RUNNER_",
    "HEADRACE_PROXY_",
)
"""Not an agent's business: it may be a model at a shell, and there are passwords among them."""

NO_KEY = "headrace"
"""Clients want a key, also where the endpoint asks for none."""


def resources_json(resources: Mapping[str, ResourceVersion]) -> str:
    """`{name: {"version", "kind", "uri", "content", …}}`."""
    return json.dumps({name: version.model_dump(mode="json") for name, version in resources.items()})


def command_environment(
    inherited: Mapping[str, str],
    attempt: Attempt,
    *,
    attempt_url: str,
    task_file: Path,
    resources_file: Path,
    otlp_protocol: str,
) -> dict[str, str]:
    """The inherited variables less our own settings, and those of this attempt."""
    environment = {key: value for key, value in inherited.items() if not key.startswith(_OURS)}
    resources = resources_json(attempt.resources)
    environment |= {
        "HEADRACE_ROLLOUT_ID": attempt.rollout_id,
        "HEADRACE_ATTEMPT_ID": attempt.attempt_id,
        "HEADRACE_ATTEMPT": str(attempt.number),
        "HEADRACE_TASK_ID": attempt.task_id,
        "HEADRACE_MODE": attempt.mode,
        "HEADRACE_TASK_FILE": str(task_file),
        "HEADRACE_RESOURCES_FILE": str(resources_file),
        "HEADRACE_ATTEMPT_URL": attempt_url,
        "OTEL_EXPORTER_OTLP_ENDPOINT": attempt_url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": otlp_protocol,
        # Nothing takes these two.
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    if len(resources.encode()) <= MAX_RESOURCES_BYTES:
        environment["HEADRACE_RESOURCES"] = resources
    if attempt.base_url is not None:
        environment["OPENAI_BASE_URL"] = attempt.base_url
        # Anthropic's clients add /v1 themselves.
        environment["ANTHROPIC_BASE_URL"] = attempt.base_url.rstrip("/").removesuffix("/v1")
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            if attempt.api_key is not None:
                environment[name] = attempt.api_key
            else:
                environment.setdefault(name, NO_KEY)
    return environment
