"""DeadLetter: a record that could not be processed, with its original bytes and place (G8)."""

from typing import Annotated, ClassVar

from pydantic import Field

from headrace.schemas.records.base import Count, Identifier, Int32, Part, Record, Timestamp


class RecordHeader(Part):
    """A Kafka header."""

    key: str
    value: bytes


class DeadLetter(Record):
    """Known by consumer, topic, partition and offset: met again, it is the same dead letter."""

    key_field: ClassVar[str] = "topic"

    consumer: Identifier
    topic: Identifier
    partition: Annotated[Int32, Field(ge=0)]
    offset: Count
    record_time: Timestamp | None = None
    key_bytes: bytes | None = None
    value: bytes | None = None
    headers: tuple[RecordHeader, ...] = ()
    reason: str
    """A short word for counting."""
    detail: str = ""

    @property
    def key(self) -> bytes:
        """The original key, so that what went wrong for one rollout stays together."""
        return self.key_bytes if self.key_bytes is not None else self.topic.encode()
