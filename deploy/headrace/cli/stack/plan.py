"""What a stack consists of: our own servers or those that the environment names, steps, processors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.kafka_jars import Report, fetch
from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.service import Service
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.state import Condition, Endpoints, ServiceState, StackState
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

PROCESSORS = ("dispatcher", "assembler", "batcher", "sink")


@dataclass(frozen=True)
class Step:
    """Something to be done once between the servers' start and the processors'; raises HeadraceError."""

    name: str
    run: Callable[[Endpoints], object]


@dataclass(frozen=True)
class Plan:
    """Servers first, then steps, then processors."""

    endpoints: Endpoints
    servers: Sequence[Service] = ()
    external: Sequence[ServiceState] = ()
    steps: Sequence[Step] = ()
    processors: Sequence[Service] = ()


def apply_topics(endpoints: Endpoints) -> None:
    from headrace.streams.client.admin import apply_topics as apply  # noqa: PLC0415 - only `up` needs it

    apply(KafkaSettings(bootstrap_servers=endpoints.kafka_bootstrap_servers))


def migrate(endpoints: Endpoints) -> None:
    from headrace.streams.clickhouse import migrate as apply  # noqa: PLC0415 - only `up` needs it

    settings = ClickHouseSettings(host=endpoints.clickhouse_host, port=endpoints.clickhouse_port)
    apply(settings, asset("clickhouse"))


STEPS = (Step("Kafka topics", apply_topics), Step("ClickHouse migrations", migrate))


def make_plan(
    settings: StackSettings,
    previous: StackState | None,
    *,
    report: Report,
    processors: Sequence[str] = PROCESSORS,
    steps: Sequence[Step] = STEPS,
) -> Plan:
    """Fetches Kafka's jars if they are missing; takes the last stack's ports where they are free."""
    home = settings.home.resolve()
    servers: list[Service] = []
    external: list[ServiceState] = []

    kafka_endpoint = KafkaSettings().bootstrap_servers
    if settings.external_kafka:
        external.append(ServiceState(name="kafka", condition=Condition.EXTERNAL, endpoint=kafka_endpoint))
    else:
        jars = fetch(settings.cache, report=report, java_home=settings.java_home)
        kafka = _kafka(home, settings, jars, previous.ports("kafka") if previous else {})
        kafka_endpoint = kafka.endpoint
        servers.append(kafka)

    at = ClickHouseSettings()
    host, port = at.host, at.port
    if settings.external_clickhouse:
        endpoint = f"{host}:{port}"
        external.append(ServiceState(name="clickhouse", condition=Condition.EXTERNAL, endpoint=endpoint))
    else:
        clickhouse = _clickhouse(home, previous.ports("clickhouse") if previous else {})
        host, port = clickhouse.host, clickhouse.port
        servers.append(clickhouse)

    endpoints = Endpoints(kafka_bootstrap_servers=kafka_endpoint, clickhouse_host=host, clickhouse_port=port)
    return Plan(
        endpoints=endpoints,
        servers=servers,
        external=external,
        steps=steps,
        processors=[_processor(name, home, endpoints) for name in processors],
    )


def _kafka(home: Path, settings: StackSettings, jars: Path, ports: Mapping[str, int]) -> KafkaBroker:
    return KafkaBroker(
        home / "kafka",
        jars=jars,
        port=ports.get("port"),
        controller_port=ports.get("controller_port"),
        java_home=settings.java_home,
        log_dir=home / "logs",
    )


def _clickhouse(home: Path, ports: Mapping[str, int]) -> ClickHouseServer:
    return ClickHouseServer(
        home / "clickhouse",
        port=ports.get("port"),
        native_port=ports.get("native_port"),
        log_dir=home / "logs",
    )


def _processor(name: str, home: Path, endpoints: Endpoints) -> ProcessorProcess:
    root = home / name
    env = {
        **endpoints.environment(),
        "HEADRACE_HOME": str(home),
        "HEADRACE_HOST_STATE_DIR": str(root / "data"),
        # The only one of its kind here: after a crash it has its partitions back at once.
        "HEADRACE_HOST_INSTANCE_ID": name,
    }
    return ProcessorProcess(name, root, env=env, log_dir=home / "logs")
