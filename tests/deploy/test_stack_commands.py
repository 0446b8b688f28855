"""The commands as a person runs them: real processes, real Kafka and ClickHouse."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.process import ProcessId
from headrace.cli.stack.state import Endpoints, load, running_endpoints

pytestmark = pytest.mark.integration


class Stack:
    """`headrace …` with a home of its own."""

    def __init__(self, home: Path, env: Mapping[str, str]) -> None:
        self.home = home
        elsewhere = ("HEADRACE_KAFKA_", "HEADRACE_CLICKHOUSE_")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(elsewhere)}
        self._env = {**ours, "HEADRACE_HOME": str(home), "COLUMNS": "200", **env}

    def with_env(self, env: Mapping[str, str]) -> "Stack":
        return Stack(self.home, env)

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        process = self.popen(*arguments)
        said = process.communicate(timeout=120)[0]
        assert process.returncode == status, said
        return said

    def status(self, *, code: int = 0) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(self.run("status", "--json", status=code))
        return described

    def endpoints(self) -> Endpoints:
        endpoints = running_endpoints(self.home)
        assert endpoints is not None
        return endpoints

    def sql(self, query: str) -> str:
        at = self.endpoints()
        url = f"http://{at.clickhouse_host}:{at.clickhouse_port}"
        with urllib.request.urlopen(url, data=query.encode(), timeout=30) as answer:
            return str(answer.read().decode().strip())

    def topics(self) -> set[str]:
        admin = AdminClient({"bootstrap.servers": self.endpoints().kafka_bootstrap_servers, "log_level": 0})
        return set(admin.list_topics(timeout=10).topics)

    def processes(self) -> list[str]:
        """The processes that have this home in their arguments or environment."""
        mark = str(self.home).encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                text = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
            except OSError:
                continue
            if mark in text:
                found.append(f"{folder.name} {text[:200]!r}")
        return found


@pytest.fixture
def stack(tmp_path: Path, kafka_jars: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "home", {})
    yield stack
    stack.run("down")
    assert stack.processes() == []


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def restarted(home: Path) -> bool:
    state = load(home)
    return state is not None and state.services[0].num_restarts == 1 and state.services[0].actual == "running"


def test_data_survives_down_and_up(stack: Stack) -> None:
    said = stack.run("up", "--detach", "--no-processors")
    assert "ready: Kafka 127.0.0.1:" in said
    before = stack.endpoints()
    assert "headrace.spans.v1" in stack.topics()
    assert "spans" in stack.sql("SHOW TABLES FROM headrace").splitlines()
    admin = AdminClient({"bootstrap.servers": before.kafka_bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("mine", 1, 1)])["mine"].result(30)
    del admin
    stack.sql("CREATE TABLE default.mine (x UInt8) ENGINE = MergeTree ORDER BY x")
    stack.sql("INSERT INTO default.mine VALUES (7)")

    services = {service["name"]: service for service in stack.status()["services"]}
    assert [service["state"] for service in services.values()] == ["running", "running"]
    assert services["kafka"]["data_bytes"] > 0
    assert Path(services["kafka"]["log"]).exists()
    assert "kafka" in stack.run("status")

    assert "the data stays in" in stack.run("down")
    assert stack.processes() == []
    assert running_endpoints(stack.home) is None
    assert stack.status(code=1)["phase"] == "stopped"

    stack.run("up", "--detach", "--no-processors")
    assert stack.endpoints() == before
    assert "mine" in stack.topics()
    assert stack.sql("SELECT x FROM default.mine") == "7"


def test_a_second_up_is_refused(stack: Stack) -> None:
    stack.run("up", "--detach", "--no-processors")
    for arguments in (["up"], ["up", "--detach"]):
        assert "a stack already runs in" in stack.run(*arguments, status=1)
    assert stack.status()["phase"] == "ready"


def test_ctrl_c_leaves_nothing_behind(stack: Stack) -> None:
    with stack.popen("up") as process:
        wait_until(lambda: running_endpoints(stack.home) or process.poll() is not None)
        num_processes = len(stack.processes())
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert num_processes >= 3, said
    assert process.returncode == 0, said
    assert "kafka: stopped" in said
    assert stack.processes() == []


def test_a_killed_supervisor_takes_all_with_it_and_up_works_again(stack: Stack) -> None:
    stack.run("up", "--detach", "--no-processors")
    state = load(stack.home)
    assert state is not None
    state.supervisor.signal(signal.SIGKILL)
    for service in state.services:
        assert service.process is not None
        assert service.process.wait_gone(10)
    assert [service["state"] for service in stack.status(code=1)["services"]] == ["stopped", "stopped"]
    assert "ended without stopping it" in stack.run("down")
    stack.run("up", "--detach", "--no-processors")
    assert stack.status()["phase"] == "ready"


def test_a_killed_broker_is_started_again(stack: Stack) -> None:
    stack.run("up", "--detach", "--no-processors")
    kafka = stack.status()["services"][0]
    identity = ProcessId.of(kafka["pid"])
    assert identity is not None
    identity.signal(signal.SIGKILL)
    wait_until(lambda: restarted(stack.home))
    assert stack.status()["services"][0]["endpoint"] == kafka["endpoint"]
    assert "kafka died with signal 9" in (stack.home / "logs" / "supervisor.log").read_text()
    assert "headrace.spans.v1" in stack.topics()


def test_what_the_environment_names_is_used_and_not_started(
    stack: Stack, kafka: KafkaBroker, clickhouse: ClickHouseServer, topic_prefix: str, database: str
) -> None:
    elsewhere = stack.with_env(
        {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.endpoint,
            "HEADRACE_KAFKA_TOPIC_PREFIX": topic_prefix,
            "HEADRACE_CLICKHOUSE_PORT": str(clickhouse.port),
            "HEADRACE_CLICKHOUSE_DATABASE": database,
        }
    )
    said = elsewhere.run("up", "--detach", "--no-processors")
    assert f"kafka: {kafka.endpoint}, set by the environment, not started here" in said
    assert elsewhere.endpoints().clickhouse_port == clickhouse.port
    assert {service["state"] for service in elsewhere.status()["services"]} == {"external"}
    assert f"{topic_prefix}.spans.v1" in elsewhere.topics()
    assert "spans" in elsewhere.sql(f"SHOW TABLES FROM {database}").splitlines()
    assert not (stack.home / "kafka").exists()
    assert not (stack.home / "clickhouse").exists()


@pytest.mark.parametrize("arguments", [["up", "--detach"], ["up"]], ids=["detached", "foreground"])
def test_a_start_that_fails_says_why(stack: Stack, arguments: list[str]) -> None:
    said = stack.with_env({"JAVA_HOME": "/nowhere"}).run(*arguments, status=1)
    assert "Kafka needs Java 17 or newer, and /nowhere/bin/java was not found" in said
    assert "Traceback" not in said
    assert stack.status(code=1)["phase"] == "failed"


def test_nothing_to_stop_or_show(stack: Stack) -> None:
    assert "nothing runs in" in stack.run("down")
    assert "nothing runs in" in stack.run("status", status=1)
    assert stack.status(code=1) == {
        "home": str(stack.home),
        "phase": "stopped",
        "pid": None,
        "error": "",
        "endpoints": None,
        "services": [],
    }
