"""Apache Kafka as a child process: KRaft, one node that is broker and controller, loopback only.

Survives `kill -9`: the same `start` brings it back on its data. It then takes about three seconds longer,
which is `broker.session.timeout.ms`: the controller waits for the session of the broker's earlier life to
end.
"""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.cli.stack.kafka_jars import java_program
from headrace.cli.stack.ports import LOOPBACK, is_open, pick
from headrace.cli.stack.service import Service, ServiceError

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}

# Topics are declared in schemas/; a typing error must not create one.
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4

# One machine, one node: join groups at once, notice dead members and our own restart soon.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000

# The default is 128 MiB, a quarter of our heap.
log.cleaner.dedupe.buffer.size=33554432
"""

_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: "%d{ISO8601} %p %m (%c{1})%n"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        ref: out
    Logger:
      # Hundreds of lines of defaults at each start.
      - name: org.apache.kafka.common.config.AbstractConfig
        level: WARN
"""


class KafkaBroker(Service):
    def __init__(
        self,
        root: Path,
        *,
        jars: Path,
        port: int | None = None,
        controller_port: int | None = None,
        heap_mb: int = 512,
        java_home: Path | None = None,
        log_dir: Path | None = None,
        start_timeout_s: float = 90.0,
        stop_timeout_s: float = 20.0,
    ) -> None:
        """`jars` is what `kafka_jars.fetch` returns. Ports are preferences: taken ones are replaced."""
        super().__init__(
            root,
            name="kafka",
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
        )
        self.port = pick(port)
        self.controller_port = pick(controller_port, taken=(self.port,))
        self.heap_mb = heap_mb
        self._jars = jars.resolve()
        self._java_home = java_home
        self._java = ""

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    bootstrap_servers = endpoint

    @property
    def ports(self) -> Mapping[str, int]:
        return {"port": self.port, "controller_port": self.controller_port}

    @property
    def waits_for(self) -> str:
        return f"Kafka at {self.endpoint} to answer with its metadata"

    def _command(self) -> Sequence[str]:
        heap = [f"-Xmx{self.heap_mb}m", "-XX:+UseG1GC", "-XX:+ExitOnOutOfMemoryError"]
        return [self._java, *heap, *self._jvm_options(), "kafka.Kafka", str(self._properties_path)]

    def _jvm_options(self) -> list[str]:
        return [
            # Files in /tmp that a killed JVM leaves behind.
            "-XX:-UsePerfData",
            f"-XX:ErrorFile={self.log_path.with_name('kafka-crash.log')}",
            # zstd and snappy unpack their native libraries there.
            f"-Djava.io.tmpdir={self.root / 'tmp'}",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.root / 'log4j2.yaml'}",
            "-cp",
            f"{self._jars}/*",
        ]

    def _prepare(self) -> None:
        self._java = java_program(self._java_home)
        shutil.rmtree(self.root / "tmp", ignore_errors=True)
        (self.root / "tmp").mkdir()
        (self.root / "log4j2.yaml").write_text(_LOG4J)
        if not (self.data_path / "meta.properties").exists():
            self._format()
        self._write_properties(self.data_path)

    @property
    def _properties_path(self) -> Path:
        return self.root / "server.properties"

    def _write_properties(self, data: Path) -> None:
        values = {"host": LOOPBACK, "port": self.port, "controller_port": self.controller_port, "data": data}
        self._properties_path.write_text(_PROPERTIES.format(**values))

    def _format(self) -> None:
        """Make the formatted data folder appear in one step: nothing half done is ever started on."""
        scratch = self.root / "formatting"
        shutil.rmtree(scratch, ignore_errors=True)
        self._write_properties(scratch)
        # One that begins with a dash, as one in 64 would, the tool takes for an option.
        cluster_id = "h" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = [self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._jvm_options()]
        command += ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties_path)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ServiceError(f"kafka could not format {self.data_path}:\n{done.stdout[-4000:]}")
        # rmdir refuses a folder with something in it, and so never removes data.
        self.data_path.rmdir()
        scratch.rename(self.data_path)

    def _is_ready(self) -> bool:
        # The client would complain on stderr while nothing listens.
        if not is_open(self.port):
            return False
        admin = AdminClient({"bootstrap.servers": self.endpoint, "log_level": 0})
        try:
            # A broker that the controller has not admitted yet is not among them.
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False
