import os
from pathlib import Path

import pytest

from headrace.cli.endpoints import (
    clickhouse_settings,
    connect_clickhouse,
    existing_topics,
    kafka_settings,
    read_settings,
)
from headrace.cli.stack.ports import pick
from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.state import Endpoints, Phase, StackState
from headrace.schemas.errors import FatalError
from headrace.streams.clickhouse import ClickHouseUnavailableError
from headrace.streams.client.errors import KafkaUnavailableError
from headrace.streams.settings import ClickHouseSettings


@pytest.fixture
def stack(tmp_path: Path) -> Endpoints:
    """The state file of a stack that runs, as far as a reader can tell."""
    home = tmp_path / "home"
    home.mkdir()
    me = ProcessId.of(os.getpid())
    assert me is not None
    at = Endpoints(
        kafka_bootstrap_servers="127.0.0.1:1111", clickhouse_host="127.0.0.2", clickhouse_port=2222
    )
    StackState(supervisor=me, phase=Phase.READY, endpoints=at).save(home)
    return at


def test_defaults_where_nothing_says_otherwise() -> None:
    assert kafka_settings().bootstrap_servers == "127.0.0.1:9092"
    assert (clickhouse_settings().host, clickhouse_settings().port) == ("127.0.0.1", 8123)


@pytest.mark.usefixtures("stack")
def test_the_running_stack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_TOPIC_PREFIX", "mine")
    monkeypatch.setenv("HEADRACE_CLICKHOUSE_DATABASE", "mine")
    assert (kafka_settings().bootstrap_servers, kafka_settings().topic_prefix) == ("127.0.0.1:1111", "mine")
    found = clickhouse_settings()
    assert (found.host, found.port, found.database) == ("127.0.0.2", 2222, "mine")


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(("variable", "value"), [("HOST", "ch.example"), ("PORT", "7777")])
def test_the_environment_comes_first(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9")
    monkeypatch.setenv(f"HEADRACE_CLICKHOUSE_{variable}", value)
    assert kafka_settings().bootstrap_servers == "kafka.example:9"
    wanted = {"host": "127.0.0.1", "port": 8123, variable.lower(): int(value) if value.isdigit() else value}
    found = clickhouse_settings()
    assert {"host": found.host, "port": found.port} == wanted


def test_quiet_is_for_commands_and_yields_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kafka_settings().extra == {}
    assert kafka_settings(quiet=True).extra == {"log_level": 0}
    monkeypatch.setenv("HEADRACE_KAFKA_EXTRA", '{"log_level": 7}')
    assert kafka_settings(quiet=True).extra == {"log_level": 7}


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CLICKHOUSE_PORT", "secret")
    with pytest.raises(
        FatalError, match=r"^HEADRACE_CLICKHOUSE_PORT: Input should be a valid integer"
    ) as caught:
        read_settings(ClickHouseSettings)
    assert "secret" not in str(caught.value)


def test_who_does_not_answer_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.cli.endpoints.ANSWER_S", 0.2)
    port = pick()
    nowhere = kafka_settings(quiet=True).model_copy(update={"bootstrap_servers": f"127.0.0.1:{port}"})
    with pytest.raises(KafkaUnavailableError, match="headrace up") as kafka:
        existing_topics(nowhere)
    assert f"no answer from Kafka at 127.0.0.1:{port} within 0.2 s" in str(kafka.value)
    assert str(tmp_path / "home") in str(kafka.value)
    with pytest.raises(ClickHouseUnavailableError, match="HEADRACE_CLICKHOUSE_HOST") as clickhouse:
        connect_clickhouse(ClickHouseSettings(port=port))
    assert f"no answer from ClickHouse at 127.0.0.1:{port} (Connection refused)" in str(clickhouse.value)


@pytest.mark.usefixtures("stack")
def test_a_stack_that_does_not_answer_is_pointed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.endpoints.ANSWER_S", 0.2)
    with pytest.raises(KafkaUnavailableError, match="headrace status"):
        existing_topics(kafka_settings(quiet=True))
