"""Commands in this process, led to the session's Kafka and ClickHouse by the environment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli.assets import asset
from headrace.cli.main import main
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.streams.clickhouse import migrate
from headrace.streams.settings import ClickHouseSettings, KafkaSettings


class Cli:
    """`headrace …`, in an environment of its own."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = {"COLUMNS": "160", **env}

    def __call__(self, *arguments: str, status: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner(env=self.env).invoke(main, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments, "--json").stdout.splitlines()]


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "KAFKA_BOOTSTRAP_SERVERS",
        "KAFKA_TOPIC_PREFIX",
        "CLICKHOUSE_HOST",
        "CLICKHOUSE_PORT",
        "DEBUG",
    ):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def kafka_cli(kafka: KafkaBroker, topic_prefix: str) -> Cli:
    return Cli(
        {"HEADRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.endpoint, "HEADRACE_KAFKA_TOPIC_PREFIX": topic_prefix}
    )


@pytest.fixture
def kafka_settings(kafka: KafkaBroker, kafka_cli: Cli, topic_prefix: str) -> KafkaSettings:
    """Topics are applied."""
    kafka_cli("topics", "apply")
    return KafkaSettings(bootstrap_servers=kafka.endpoint, topic_prefix=topic_prefix)


@pytest.fixture
def clickhouse_settings(clickhouse: ClickHouseServer, database: str) -> ClickHouseSettings:
    """Migrations are applied."""
    settings = ClickHouseSettings(host=clickhouse.host, port=clickhouse.port, database=database)
    migrate(settings, asset("clickhouse"))
    return settings


@pytest.fixture
def sql_cli(clickhouse: ClickHouseServer, database: str) -> Cli:
    return Cli({"HEADRACE_CLICKHOUSE_PORT": str(clickhouse.port), "HEADRACE_CLICKHOUSE_DATABASE": database})
