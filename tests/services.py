"""Real Kafka and ClickHouse for tests: one of each per session, on loopback, in temporary folders.

Tests that kill a service start their own (`kafka_factory`, `clickhouse_factory`).
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.kafka_jars import fetch
from headrace.cli.stack.settings import StackSettings


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    settings = StackSettings()
    return fetch(settings.cache, report=print, java_home=settings.java_home)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_jars: Path) -> Iterator[KafkaBroker]:
    """Shared by all tests of the session: use `topic_prefix`, and never stop it."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), jars=kafka_jars) as broker:
        yield broker


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    """Shared by all tests of the session: use `database`, and never stop it."""
    with ClickHouseServer(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


@pytest.fixture
def kafka_factory(tmp_path: Path, kafka_jars: Path) -> Iterator[Callable[[], KafkaBroker]]:
    """Brokers of the test's own, to stop and kill; not started yet, stopped at its end."""
    made: list[KafkaBroker] = []

    def make() -> KafkaBroker:
        made.append(KafkaBroker(tmp_path / f"kafka-{len(made)}", jars=kafka_jars))
        return made[-1]

    yield make
    for broker in made:
        broker.kill()


@pytest.fixture
def clickhouse_factory(tmp_path: Path) -> Iterator[Callable[..., ClickHouseServer]]:
    """Servers of the test's own, to stop and kill; not started yet, stopped at its end."""
    made: list[ClickHouseServer] = []

    def make(*, timezone: str = "UTC") -> ClickHouseServer:
        made.append(ClickHouseServer(tmp_path / f"clickhouse-{len(made)}", timezone=timezone))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def topic_prefix() -> str:
    """No other test's topics start with it."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def database() -> str:
    """A database name that no other test uses; not created yet."""
    return f"t{uuid.uuid4().hex[:10]}"
