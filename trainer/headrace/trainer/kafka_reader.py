"""KafkaReader: batches as the trainer takes them, from the client's consumer."""

from collections.abc import Mapping

import structlog

from headrace.streams.client.batch import BadBatchError
from headrace.streams.client.batch_consumer import BatchConsumer
from headrace.trainer.source import TrainingBatch

log = structlog.get_logger(__name__)


class KafkaReader:
    """A source.Reader."""

    def __init__(self, consumer: BatchConsumer, *, skips_bad: bool = False) -> None:
        """`skips_bad`: what is no whole batch is logged and left out, and no error."""
        self._consumer = consumer
        self._skips_bad = skips_bad

    def seek(self, offsets: Mapping[str, int]) -> None:
        self._consumer.seek(offsets)

    @property
    def offsets(self) -> Mapping[str, int]:
        return self._consumer.offsets

    def waiting_for(self) -> str:
        return self._consumer.waiting_for()

    def poll(self, timeout_s: float) -> TrainingBatch | None:
        try:
            batch = self._consumer.poll(timeout_s)
        except BadBatchError as error:
            if not self._skips_bad:
                raise
            log.error("a batch is left out", reason=str(error))  # noqa: TRY400  the message is whole
            return None
        if batch is None:
            return None
        groups = [group.trajectories for group in batch.groups]
        num_settled = batch.settled_num_outcomes
        return TrainingBatch(
            batch.batch_id,
            groups,
            batch.offsets,
            waited_s=0.0,
            num_settled=num_settled,
            settled_outcome=batch.settled_outcome_sum / num_settled if num_settled else 0.0,
        )
