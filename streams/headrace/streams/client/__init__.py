"""What a program uses to publish events and to administer topics; needs nothing but the core install."""

from headrace.streams.client.async_publisher import AsyncPublisher
from headrace.streams.client.errors import (
    DeliveryError,
    KafkaUnavailableError,
    PublisherFullError,
    RecordTooLargeError,
)
from headrace.streams.client.publisher import Publisher

__all__ = [
    "AsyncPublisher",
    "DeliveryError",
    "KafkaUnavailableError",
    "Publisher",
    "PublisherFullError",
    "RecordTooLargeError",
]
