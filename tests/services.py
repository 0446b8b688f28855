"""Real Kafka, ClickHouse and vLLM for tests: one of each per session, on loopback, in temporary folders.

Tests that kill a service or change its weights start their own (`kafka_factory`, `clickhouse_factory`,
`vllm_factory`).
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.kafka_jars import fetch
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.vllm import VllmServer


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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that `vllm` serves."""
    # torch and transformers take seconds to import, and few tests need them.
    from tests.tiny_model import make  # noqa: PLC0415

    return make(tmp_path_factory.mktemp("tiny-model"))


def vllm_server(root: Path, model: Path, **options: Any) -> VllmServer:
    bytecode = StackSettings().cache / "bytecode"
    given: dict[str, Any] = {"tool_call_parser": "hermes", "bytecode": bytecode, **options}
    return VllmServer(root, model=model, model_name="tiny", **given)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[VllmServer]:
    """Shared by all tests of the session: never stop it, pause it or load other weights into it."""
    with vllm_server(tmp_path_factory.mktemp("vllm"), tiny_model) as server:
        yield server


@pytest.fixture
def vllm_factory(tmp_path: Path, tiny_model: Path) -> Iterator[Callable[..., VllmServer]]:
    """Servers of the test's own, of the tiny model unless told; not started yet, stopped at its end."""
    made: list[VllmServer] = []

    def make(model: Path | None = None, **options: Any) -> VllmServer:
        made.append(vllm_server(tmp_path / f"vllm-{len(made)}", model or tiny_model, **options))
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
