"""KafkaReader: batches as the trainer takes them, from the client's consumer."""

from collections.abc import Mapping

from headrace.streams.client.batch_consumer import BatchConsumer
from headrace.trainer.source import TrainingBatch


class KafkaReader:
    """A source.Reader."""

    def __init__(self, consumer: BatchConsumer) -> None:
        self._consumer = consumer

    def seek(self, offsets: Mapping[str, int]) -> None:
        self._consumer.seek(offsets)

    @property
    def offsets(self) -> Mapping[str, int]:
        return self._consumer.offsets

    def waiting_for(self) -> str:
        return self._consumer.waiting_for()

    def poll(self, timeout_s: float) -> TrainingBatch | None:
        batch = self._consumer.poll(timeout_s)
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
