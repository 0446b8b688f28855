"""An attempt in memory, and rollouts on real Kafka."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.streams.runner.harness import Rollouts, rollouts_on
from tests.streams.runner.twins import MemoryOutlet, a_mailbox, an_attempt

from headrace.cli.stack.kafka import KafkaBroker
from headrace.streams.runner.attempt import Attempt
from headrace.streams.settings import KafkaSettings


@pytest.fixture
def outlet() -> MemoryOutlet:
    return MemoryOutlet()


@pytest.fixture
def attempt(outlet: MemoryOutlet) -> Iterator[Attempt]:
    with a_mailbox() as mailbox:
        yield an_attempt(outlet, mailbox)


@pytest.fixture
def rollouts(kafka: KafkaBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Rollouts]:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    with rollouts_on(settings, tmp_path) as made:
        made.dispatcher()
        yield made
