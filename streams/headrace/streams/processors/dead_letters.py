"""Dead letters: a record that can't be processed, made into one that can be looked at and replayed (G8)."""

from datetime import UTC, datetime

from headrace.schemas.records import DeadLetter, RecordHeader
from headrace.streams.processor import LogRecord

KEY_MISMATCH = "key_mismatch"
"""Its key is not the rollout it speaks of, so that it may stand in the wrong partition."""
REFUSED = "refused_by_clickhouse"
"""It decodes, and ClickHouse would not take it."""

MAX_DETAIL = 2000


def dead_letter(consumer: str, record: LogRecord, reason: str, detail: str) -> DeadLetter:
    """The same record and reason always give the same dead letter, so that meeting it twice is harmless."""
    has_time = 0 <= record.timestamp_ms < 253_402_300_800_000  # the year 10000, where datetime ends
    return DeadLetter(
        consumer=consumer,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        record_time=datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) if has_time else None,
        key_bytes=record.key,
        value=record.value,
        headers=tuple(RecordHeader(key=key, value=value or b"") for key, value in record.headers),
        reason=reason,
        detail=detail[:MAX_DETAIL],
    )
