"""Wires the sink: settings in, exit status out."""

import gc
import signal
import threading

import structlog
from prometheus_client import start_http_server

from headrace.schemas.codec import Codec
from headrace.streams.clickhouse import connect
from headrace.streams.client.publisher import Publisher
from headrace.streams.processors.sink.settings import SinkSettings
from headrace.streams.processors.sink.sink import Sink
from headrace.streams.processors.sink.writer import ClickHouseWriter
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

# Net new objects that Python lets gather before it looks for cycles. The records of a batch are tens of
# thousands, without cycles, and at the default of 700 looking took half of the time that reading them did.
_GC_THRESHOLD = 50_000

log = structlog.get_logger("headrace.sink")


def run(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, settings: SinkSettings, codec: Codec | None = None
) -> None:
    """Run until SIGTERM or SIGINT; FatalError when somebody has to change something first."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if settings.metrics_port is not None:
        start_http_server(settings.metrics_port, addr="127.0.0.1")
    codec = codec or Codec()

    def new_writer() -> ClickHouseWriter:
        return ClickHouseWriter(connect(clickhouse), clickhouse, codec)

    publisher = Publisher(kafka, codec=codec, properties={"client.id": "headrace-sink"})
    sink = Sink(kafka, settings, new_writer, publisher)
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    log.info("started", kafka=kafka.bootstrap_servers, clickhouse=f"{clickhouse.host}:{clickhouse.port}")
    sink.run(stop)
    log.info("stopped")
