from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.streams.client.dispatching import HandRunner, dispatcher_process

from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.processor import ProcessorProcess
from headrace.streams.client.admin import apply_topics
from headrace.streams.client.rollouts import Client
from headrace.streams.settings import KafkaSettings


@pytest.fixture
def rollout_topics(kafka: KafkaBroker, topic_prefix: str) -> KafkaSettings:
    """Topics of the test's own, on the session's broker."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(settings)
    return settings


@pytest.fixture
def client(rollout_topics: KafkaSettings) -> Iterator[Client]:
    with Client(rollout_topics, linger_ms=1) as made:
        yield made


@pytest.fixture
def dispatcher(rollout_topics: KafkaSettings, tmp_path: Path) -> Iterator[ProcessorProcess]:
    """Started already; ended with the test."""
    process = dispatcher_process(rollout_topics, tmp_path / "dispatcher")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def runner(rollout_topics: KafkaSettings) -> Iterator[HandRunner]:
    with HandRunner(rollout_topics) as made:
        yield made
