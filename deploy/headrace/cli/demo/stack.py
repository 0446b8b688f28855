"""The demo's own stack, started fresh and stopped at its end; its data stays until the next demo."""

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from headrace.cli.assets import asset
from headrace.cli.endpoints import read_settings
from headrace.cli.stack.plan import make_plan
from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.service import Service
from headrace.cli.stack.settings import StackSettings
from headrace.cli.stack.state import lock
from headrace.schemas.errors import FatalError
from headrace.streams.settings import ClickHouseSettings, KafkaSettings


class DemoStack:
    """Where everything is, and who is watched."""

    def __init__(
        self,
        home: Path,
        kafka: KafkaSettings,
        clickhouse: ClickHouseSettings,
        console: Console,
        stack: ExitStack,
    ) -> None:
        self.home = home
        self.kafka = kafka
        self.clickhouse = clickhouse
        self.environment: Mapping[str, str] = {}
        """By which a process finds Kafka and ClickHouse."""
        self.services: list[Service] = []
        self._console = console
        self._stack = stack

    def start(self, service: Service) -> None:
        """Return when it is ready; it is stopped with the stack."""
        with self._console.status(f"waiting for {service.waits_for}"):
            service.start()
        self._stack.callback(service.stop)
        self.services.append(service)
        at = f" at {service.endpoint}" if service.endpoint else ""
        _say(self._console, f"{service.name} runs{at}, after {service.startup_s:.1f} s")

    def stop(self, service: Service) -> None:
        """Before the others; nobody wonders that it is gone."""
        self.services.remove(service)
        service.stop()

    def process(self, name: str, *arguments: str, **environment: str) -> ProcessorProcess:
        """`headrace NAME ARGUMENTS`, not started."""
        root = self.home / name
        known = {
            **self.environment,
            "HEADRACE_HOST_STATE_DIR": str(root / "data"),
            "HEADRACE_HOST_INSTANCE_ID": name,
            **environment,
        }
        return ProcessorProcess(name, root, env=known, arguments=arguments, log_dir=self.home / "logs")

    def check(self) -> None:
        """FatalError, with its own words, if a process of the stack has died."""
        for service in self.services:
            if not service.running:
                raise FatalError(service.death_notice())


@contextmanager
def demo_stack(
    console: Console, folder: str, *, processors: Sequence[str], environment: Mapping[str, str]
) -> Iterator[DemoStack]:
    """Servers of its own, or a topic prefix and a database of its own on those that the environment names."""
    from headrace.streams.clickhouse import migrate  # noqa: PLC0415  an extra
    from headrace.streams.client.admin import apply_topics  # noqa: PLC0415  brings Kafka's client

    settings = read_settings(StackSettings)
    home = settings.home.resolve() / folder
    settings = settings.model_copy(update={"home": home})
    name = f"demo_{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        stack.enter_context(lock(home))
        for path in home.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        plan = make_plan(
            settings, None, report=lambda line: _say(console, f"kafka: {line}"), processors=(), steps=()
        )
        kafka = read_settings(KafkaSettings).model_copy(
            update={"bootstrap_servers": plan.endpoints.kafka_bootstrap_servers}
        )
        clickhouse = read_settings(ClickHouseSettings).model_copy(
            update={"host": plan.endpoints.clickhouse_host, "port": plan.endpoints.clickhouse_port}
        )
        if settings.external_kafka:
            kafka = kafka.model_copy(update={"topic_prefix": name})
        if settings.external_clickhouse:
            clickhouse = clickhouse.model_copy(update={"database": name})
        found = DemoStack(home, kafka, clickhouse, console, stack)
        for server in plan.servers:
            found.start(server)
        with console.status("topics and tables"):
            apply_topics(kafka)
            migrate(clickhouse, asset("clickhouse"))
        found.environment = {
            **plan.endpoints.environment(),
            "HEADRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
            "HEADRACE_CLICKHOUSE_DATABASE": clickhouse.database,
            **environment,
        }
        for processor in processors:
            found.start(found.process(processor))
        yield found


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
