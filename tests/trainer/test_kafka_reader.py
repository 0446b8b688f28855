"""Batches as the trainer takes them, and what becomes of those that are none."""

from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.streams.client.batch import BadBatchError, Batch
from headrace.trainer.kafka_reader import KafkaReader


class Consumer:
    """A BatchConsumer whose first batch lacks a shard."""

    def __init__(self) -> None:
        made = datetime(2026, 1, 1, tzinfo=UTC)
        self.found: list[Any] = [
            BadBatchError("batch b1 lacks shards"),
            Batch("b2", "hash", (), 1, 1, made, 6.0, 8, {"batches:0": 3}),
            Batch("b3", "hash", (), 1, 1, made, offsets={"batches:0": 4}),
        ]

    def poll(self, _timeout_s: float) -> Batch | None:
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        batch: Batch = found
        return batch


def reader(*, skips_bad: bool) -> KafkaReader:
    consumer: Any = Consumer()
    return KafkaReader(consumer, skips_bad=skips_bad)


def test_a_bad_batch_ends_the_run_unless_it_is_told_otherwise() -> None:
    with pytest.raises(BadBatchError, match="lacks shards"):
        reader(skips_bad=False).poll(0)
    skipping = reader(skips_bad=True)
    with capture_logs() as logs:
        assert skipping.poll(0) is None
    assert [each["reason"] for each in logs] == ["batch b1 lacks shards"]
    batch = skipping.poll(0)
    assert batch is not None
    assert (batch.batch_id, batch.offsets, batch.num_settled, batch.settled_outcome) == (
        "b2",
        {"batches:0": 3},
        8,
        0.75,
    )
    last = skipping.poll(0)
    assert last is not None
    assert (last.num_settled, last.settled_outcome) == (0, 0.0)
