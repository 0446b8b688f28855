"""What a program uses to publish events, run rollouts, read batches, and read and publish resources.

Needs nothing but the core install. What is not asked for is not imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.streams.client.async_publisher import AsyncPublisher
from headrace.streams.client.errors import (
    DeliveryError,
    KafkaUnavailableError,
    PublisherFullError,
    RecordTooLargeError,
)
from headrace.streams.client.publisher import Publisher

if TYPE_CHECKING:
    from headrace.streams.client.async_rollouts import AsyncClient
    from headrace.streams.client.batch import BadBatchError, Batch, BatchGroup
    from headrace.streams.client.batch_consumer import BatchConsumer, BatchTimeoutError
    from headrace.streams.client.resource_publishing import publish_resource
    from headrace.streams.client.resources import ResourceStore
    from headrace.streams.client.rollouts import Client, EnqueuedRollout

_LATE = {
    "AsyncClient": "async_rollouts",
    "BadBatchError": "batch",
    "Batch": "batch",
    "BatchConsumer": "batch_consumer",
    "BatchGroup": "batch",
    "BatchTimeoutError": "batch_consumer",
    "Client": "rollouts",
    "EnqueuedRollout": "rollouts",
    "ResourceStore": "resources",
    "publish_resource": "resource_publishing",
}

__all__ = [
    "AsyncClient",
    "AsyncPublisher",
    "BadBatchError",
    "Batch",
    "BatchConsumer",
    "BatchGroup",
    "BatchTimeoutError",
    "Client",
    "DeliveryError",
    "EnqueuedRollout",
    "KafkaUnavailableError",
    "Publisher",
    "PublisherFullError",
    "RecordTooLargeError",
    "ResourceStore",
    "publish_resource",
]


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
