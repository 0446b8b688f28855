"""Real Kafka, ClickHouse and processors for benches, in a scratch folder, all stopped at the end."""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.assets import asset
from headrace.cli.stack.clickhouse import ClickHouseServer
from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.kafka_jars import fetch
from headrace.cli.stack.processor import ProcessorProcess
from headrace.cli.stack.settings import StackSettings
from headrace.schemas.topics import topic_specs
from headrace.streams.clickhouse import migrate
from headrace.streams.client.admin import apply_topics
from headrace.streams.settings import ClickHouseSettings, KafkaSettings


def say(words: str) -> None:
    """Progress, for people: standard output is for figures."""
    print(words, file=sys.stderr, flush=True)


@dataclass
class Lane:
    """Topics, tables and processors that no other bench of the run uses."""

    kafka: KafkaSettings
    clickhouse: ClickHouseSettings
    folder: Path
    processes: ExitStack = field(default_factory=ExitStack)

    def topic(self, name: str) -> str:
        return topic_specs()[name].full_name(self.kafka.topic_prefix)

    def group(self, processor: str) -> str:
        return f"{self.kafka.topic_prefix}-{processor}"

    @property
    def environment(self) -> dict[str, str]:
        """By which a process finds them."""
        return {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_KAFKA_TOPIC_PREFIX": self.kafka.topic_prefix,
            "HEADRACE_CLICKHOUSE_HOST": self.clickhouse.host,
            "HEADRACE_CLICKHOUSE_PORT": str(self.clickhouse.port),
            "HEADRACE_CLICKHOUSE_DATABASE": self.clickhouse.database,
            "HEADRACE_HOST_STATE_DIR": str(self.folder / "state"),
        }

    def start(self, processor: str, *arguments: str, **environment: str) -> ProcessorProcess:
        """The processor, or the runner, as a process of its own; stopped with the lane, if not before."""
        folder = self.folder / processor
        process = ProcessorProcess(processor, folder, env=self.environment | environment, arguments=arguments)
        return self.processes.enter_context(process)


class Parts:
    """One broker and one server for a whole run."""

    def __init__(self, folder: Path, broker: KafkaBroker, server: ClickHouseServer) -> None:
        self._folder = folder
        self._broker = broker
        self._server = server
        self._numbers: Counter[str] = Counter()

    @contextmanager
    def lane(self, name: str) -> Iterator[Lane]:
        """Topics and tables under a name of its own that begins so; its processes end with it."""
        own_name = self._own(name)
        kafka = KafkaSettings(bootstrap_servers=self._broker.bootstrap_servers, topic_prefix=own_name)
        apply_topics(kafka)
        lane = Lane(kafka, self._tables(own_name), self._folder / own_name)
        with lane.processes:
            yield lane

    def tables(self, name: str) -> ClickHouseSettings:
        """Empty tables, in a database whose name begins so."""
        return self._tables(self._own(name))

    def _own(self, name: str) -> str:
        self._numbers[name] += 1
        return f"bench_{name}_{self._numbers[name]}"

    def _tables(self, database: str) -> ClickHouseSettings:
        clickhouse = ClickHouseSettings(host=self._server.host, port=self._server.port, database=database)
        migrate(clickhouse, asset("clickhouse"))
        return clickhouse


@contextmanager
def parts() -> Iterator[Parts]:
    """Start both; the scratch folder goes with them."""
    settings = StackSettings()
    jars = fetch(settings.cache, report=say, java_home=settings.java_home)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        say(f"starting Kafka and ClickHouse in {folder}")
        broker = stack.enter_context(KafkaBroker(folder / "kafka", jars=jars, java_home=settings.java_home))
        server = stack.enter_context(ClickHouseServer(folder / "clickhouse"))
        yield Parts(folder, broker, server)
