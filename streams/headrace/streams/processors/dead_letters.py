"""Dead letters: a record that can't be processed, made into one that can be looked at and replayed (G8)."""

from datetime import UTC, datetime

from headrace.schemas.records import DeadLetter, RecordHeader
from headrace.streams.processor import LogRecord

KEY_MISMATCH = "key_mismatch"
"""Its key is not the rollout it speaks of, so that it may stand in the wrong partition."""
REFUSED = "refused_by_clickhouse"
"""It decodes, and ClickHouse would not take it."""

TOO_LARGE = "too_large"
"""Bad, and too large to be kept whole; why it is bad stands in the detail."""

MAX_DETAIL = 2000
MAX_ORIGINAL_BYTES = 8 * 1024 * 1024 + 256 * 1024
"""Of key (which a dead letter has twice), value and headers: whatever fits into our own topics does."""
_KEPT_VALUE_BYTES = 1024 * 1024
_KEPT_KEY_BYTES = 4096


def dead_letter(consumer: str, record: LogRecord, reason: str, detail: str) -> DeadLetter:
    """The same record and reason always give the same dead letter, so that meeting it twice is harmless."""
    has_time = 0 <= record.timestamp_ms < 253_402_300_800_000  # the year 10000, where datetime ends
    key, value, headers = record.key, record.value, record.headers
    size = 2 * len(key or b"") + len(value or b"") + sum(len(k) + len(v or b"") for k, v in headers)
    if size > MAX_ORIGINAL_BYTES:
        # Of a topic with a higher limit, or compressed well. The record must not stop those behind it (C9).
        detail = (
            f"{reason}: {detail[: MAX_DETAIL // 2]}; too large to be kept whole: key {len(key or b'')} B, "
            f"value {len(value or b'')} B, {len(headers)} headers, of which this has the first bytes. "
            f"The record stands in {record.topic}, for as long as that is kept"
        )
        reason, headers = TOO_LARGE, ()
        key = None if key is None else key[:_KEPT_KEY_BYTES]
        value = None if value is None else value[:_KEPT_VALUE_BYTES]
    return DeadLetter(
        consumer=consumer,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        record_time=datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) if has_time else None,
        key_bytes=key,
        value=value,
        headers=tuple(RecordHeader(key=name, value=content or b"") for name, content in headers),
        reason=reason,
        detail=detail[:MAX_DETAIL],
    )
