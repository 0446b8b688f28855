"""Puts the parts of a host together: the whole wiring in one function."""

from datetime import timedelta

from headrace.streams.host.engine import App, Table, Tables
from headrace.streams.host.journal import KafkaJournal
from headrace.streams.host.metrics import HostMetrics
from headrace.streams.host.security import broker_urls, credentials
from headrace.streams.host.settings import HostSettings
from headrace.streams.host.store import StateStore
from headrace.streams.host.worker import Worker
from headrace.streams.processor import Processor
from headrace.streams.settings import KafkaSettings

TABLE = "state"


def group_name(processor: Processor, kafka: KafkaSettings) -> str:
    """The consumer group, which is Faust's app id."""
    return f"{kafka.topic_prefix}-{processor.name}"


def changelog_name(processor: Processor, kafka: KafkaSettings) -> str:
    """As Faust names it."""
    return f"{group_name(processor, kafka)}-{TABLE}-changelog"


def build(
    processor: Processor,
    kafka: KafkaSettings,
    settings: HostSettings,
    metrics: HostMetrics,
    *,
    partitions: int,
) -> App:
    """Return the app, not started. To be called in the event loop that it will run in."""
    group = group_name(processor, kafka)
    folder = settings.state_dir / group
    folder.mkdir(parents=True, exist_ok=True)
    app = App(
        group,
        broker=broker_urls(kafka),
        broker_credentials=credentials(kafka),
        datadir=folder,
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=partitions,
        processing_guarantee="at_least_once",
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        TableManager=Tables,
        table_standby_replicas=0,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.instance_id,
        broker_max_poll_records=settings.batch_max_records,
        broker_commit_interval=settings.commit_interval_s,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.heartbeat_interval_s,
        broker_rebalance_timeout=settings.rebalance_timeout_s,
        broker_request_timeout=settings.request_timeout_s,
        # A batch waits as long as the broker makes it wait; what is stuck is the watchdog's to find.
        broker_max_poll_interval=timedelta(minutes=10).total_seconds(),
        producer_acks=-1,
        # The worker hands over whole batches: there is nothing to wait for. (Faust counts in seconds.)
        producer_linger=0,
        producer_compression_type="zstd",
        producer_max_batch_size=1 << 19,
        producer_max_request_size=settings.max_output_bytes,
        producer_request_timeout=settings.request_timeout_s,
    )
    app.fetch_max_wait_ms = int(settings.fetch_max_wait_s * 1000)
    app.store = StateStore(
        folder,
        TABLE,
        block_cache_bytes=settings.block_cache_bytes,
        write_buffer_bytes=settings.write_buffer_bytes,
        max_age_s=settings.max_state_age_s,
    )
    journal = KafkaJournal(
        app.kafka_producer,
        changelog=changelog_name(processor, kafka),
        batch_bytes=settings.changelog_batch_bytes,
    )
    app.worker = Worker(processor, journal, app.store, metrics, session_timeout_s=settings.session_timeout_s)
    app.hand_back_timeout_s = settings.rebalance_timeout_s * 0.75
    app.tables.add(Table(app, name=TABLE, key_type=bytes, value_type=bytes, partitions=partitions))
    app.topics.add(app.topic(*processor.topics, key_type=bytes, value_type=bytes))
    return app
