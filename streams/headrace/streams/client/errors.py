"""What can go wrong between a client and Kafka."""

from headrace.schemas.errors import BadRecordError, RetryableError


class DeliveryError(RetryableError):
    """Kafka did not acknowledge records that were published: they may be published again.

    `failures` holds (topic, key, reason) of the first of them, `count` how many there were.
    """

    def __init__(self, count: int, failures: list[tuple[str, bytes | None, str]]) -> None:
        self.count = count
        self.failures = failures
        reasons = sorted({reason for _, _, reason in failures})
        topics = sorted({topic for topic, _, _ in failures})
        super().__init__(
            f"{count} records were not acknowledged, on {', '.join(topics)}: {'; '.join(reasons[:3])}"
        )


class PublisherFullError(RetryableError):
    """The buffer stayed full for as long as `publish` may wait: Kafka is away, or slower than the caller."""


class RecordTooLargeError(BadRecordError):
    """The record is over the broker's limit; no retry will help."""


class KafkaUnavailableError(RetryableError):
    """No broker answered."""
