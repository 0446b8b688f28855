"""What leaves the trainer, while Kafka takes it and while it does not."""

import threading
from typing import Any

import pytest
import torch

from headrace.schemas.errors import RetryableError
from headrace.schemas.probe import Probe
from headrace.schemas.records import TrainStep
from headrace.trainer.checkpoint import TrainState
from headrace.trainer.outlet import KafkaOutlet
from headrace.trainer.progress import Report
from headrace.trainer.sample import MicroBatch


class Alone:
    def broadcast(self, value: object) -> object:
        return value


class Kafka:
    """A Publisher, and a WeightsPublisher, that take nothing for some times."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.taken: list[Any] = []

    def publish(self, what: Any, *_: object, **fields: Any) -> Any:
        if self.num_failures:
            self.num_failures -= 1
            raise RetryableError("no broker answers")
        self.taken.append(fields or what)
        return self

    def flush(self) -> None: ...

    version = 4


class Numbers:
    """A policy: whatever token comes, its logprob is -2."""

    temperature = 1.0
    vocabulary = 50
    max_positions = 16

    def hf_state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def logprobs(self, batches: list[MicroBatch]) -> list[torch.Tensor]:
        return [torch.full_like(batch.weights_BS, -2.0) for batch in batches]


POLICY: Any = Numbers()


REPORT = Report(
    step=3, num_batches=2, policy_version=4, num_rollouts=8, num_tokens=90, num_stale=0,
    metrics={"loss": 0.5}, durations_s={"idle": 1.0},
)  # fmt: skip


def outlet(kafka: Kafka, stop: threading.Event) -> KafkaOutlet:
    made: Any = kafka
    return KafkaOutlet(Alone(), made, made, stop, run_id="run", algorithm="grpo", retry_s=0)


def test_it_goes_on_when_kafka_is_back() -> None:
    """G8: an outage is no reason to end."""
    kafka = Kafka(num_failures=2)
    to = outlet(kafka, threading.Event())
    assert to.publish_weights(POLICY, TrainState(run_id="run", unpublished=("b",))) == 4
    assert kafka.taken[0]["trained_on"] == ("b",)
    probe = Probe.of(kafka.taken[0]["metadata"])
    assert probe is not None
    assert probe.logprobs == (-2.0,) * 14
    kafka.num_failures = 2
    to.publish_step(REPORT, ["b"])
    (step,) = kafka.taken[1:]
    assert isinstance(step, TrainStep)
    assert (step.step, step.batch_ids, step.metrics) == (3, ("b",), {"loss": 0.5})


def test_one_that_is_told_to_stop_does_not_wait() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(RetryableError, match="no broker answers"):
        outlet(Kafka(num_failures=1), stop).publish_step(REPORT, ["b"])


def test_other_ranks_wait_with_the_main_one() -> None:
    sent: list[object] = ["again", "again", 7]

    class Other:
        def broadcast(self, value: object) -> object:
            assert value is None
            return sent.pop(0)

    other = KafkaOutlet(Other(), None, None, threading.Event(), run_id="run", algorithm="grpo")
    assert other.publish_weights(POLICY, TrainState(run_id="run")) == 7
    assert sent == []
