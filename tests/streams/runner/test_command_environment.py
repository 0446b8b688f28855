"""What a command finds in its environment."""

import json
from pathlib import Path

import pytest
from tests.builders import TIME

from headrace.schemas.records import ResourceVersion
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.command_environment import command_environment

INHERITED = {
    "PATH": "/bin",
    "OPENAI_API_KEY": "theirs",
    "HEADRACE_KAFKA_SASL_PASSWORD": "secret",
    "HEADRACE_CLICKHOUSE_PASSWORD": "secret",
    "HEADRACE_RUNNER_API_KEY": "secret",
    "HEADRACE_RUNNER_PROXY_KEY": "secret",
    "HEADRACE_PROXY_UPSTREAM_API_KEY": "secret",
    "HEADRACE_SCHEMA_REGISTRY_BASIC_AUTH": "secret",
}


def environment(attempt: Attempt) -> dict[str, str]:
    return command_environment(
        INHERITED,
        attempt,
        attempt_url="http://127.0.0.1:1/a/x",
        task_file=Path("/t/task.json"),
        resources_file=Path("/t/resources.json"),
        otlp_protocol="http/json",
    )


def test_who_it_is_and_where_events_go(attempt: Attempt) -> None:
    assert environment(attempt) == {
        "PATH": "/bin",
        "OPENAI_API_KEY": "theirs",
        "HEADRACE_ROLLOUT_ID": attempt.rollout_id,
        "HEADRACE_ATTEMPT_ID": attempt.attempt_id,
        "HEADRACE_ATTEMPT": "1",
        "HEADRACE_TASK_ID": "task-r",
        "HEADRACE_MODE": "train",
        "HEADRACE_TASK_FILE": "/t/task.json",
        "HEADRACE_RESOURCES_FILE": "/t/resources.json",
        "HEADRACE_RESOURCES": "{}",
        "HEADRACE_ATTEMPT_URL": "http://127.0.0.1:1/a/x",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1/a/x",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }


@pytest.mark.parametrize(
    ("api_key", "openai", "anthropic"), [(None, "theirs", "headrace"), ("ours", "ours", "ours")]
)
def test_where_the_model_is(attempt: Attempt, api_key: str | None, openai: str, anthropic: str) -> None:
    attempt.base_url = "http://127.0.0.1:8000/a/x/v1/"
    attempt.api_key = api_key
    found = environment(attempt)
    assert found["OPENAI_BASE_URL"] == "http://127.0.0.1:8000/a/x/v1/"
    assert found["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000/a/x"
    assert (found["OPENAI_API_KEY"], found["ANTHROPIC_API_KEY"]) == (openai, anthropic)


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (200_000, False)])
def test_resources_where_linux_takes_them(attempt: Attempt, size: int, fits: bool) -> None:  # noqa: FBT001
    attempt.resources = {
        "hint": ResourceVersion(name="hint", version=3, kind="prompt", content="é" * (size // 2), time=TIME)
    }
    found = environment(attempt)
    assert ("HEADRACE_RESOURCES" in found) is fits
    if fits:
        assert json.loads(found["HEADRACE_RESOURCES"])["hint"]["version"] == 3
