"""Wires a trainer: settings in, exit status out. One process, or those that torchrun starts."""

import signal
import threading
from contextlib import ExitStack

import structlog
import torch
from rich.console import Console

from headrace.schemas.codec import Codec
from headrace.schemas.errors import FatalError
from headrace.streams.client.batch_consumer import BatchConsumer
from headrace.streams.client.publisher import Publisher
from headrace.streams.settings import KafkaSettings
from headrace.trainer.algorithms import make_algorithm
from headrace.trainer.checkpoint import Checkpoints
from headrace.trainer.kafka_reader import KafkaReader
from headrace.trainer.loop import Loop
from headrace.trainer.models import DTYPES, make_policy, make_reference
from headrace.trainer.outlet import KafkaOutlet
from headrace.trainer.policy import Parallel, ParallelSettings
from headrace.trainer.progress import NoProgress, Progress, progress_for
from headrace.trainer.publish import WeightsPublisher
from headrace.trainer.ranks import Ranks
from headrace.trainer.samples import SampleRules
from headrace.trainer.settings import TrainSettings
from headrace.trainer.source import BatchSource

EXIT_OK = 0

log = structlog.get_logger(__name__)


def run(kafka: KafkaSettings, settings: TrainSettings, codec: Codec | None = None) -> int:
    """Train until SIGTERM or SIGINT, or until what the settings ask for is reached; return the exit status.

    Either way the last batch is finished and a checkpoint written. FatalError for what can't be trained.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    torch.manual_seed(settings.run.seed)
    sizes = ParallelSettings(
        tensor=settings.parallel.tp, pipeline=settings.parallel.pp, sequence=settings.parallel.sequence
    )
    try:
        parallel = Parallel.start(sizes)
    except ValueError as error:
        raise FatalError(f"[parallel]: {error}") from error
    with parallel:
        train(kafka, settings, parallel, stop, codec or Codec())
    return EXIT_OK


def train(
    kafka: KafkaSettings, settings: TrainSettings, parallel: Parallel, stop: threading.Event, codec: Codec
) -> None:
    """Within running process groups. Collective."""
    algorithm = make_algorithm(settings.algorithm, SampleRules.from_settings(settings))
    policy = make_policy(settings, parallel)
    if settings.data.max_sequence_tokens > policy.max_positions:
        log.info("sequences are cut to the model's positions", max_positions=policy.max_positions)
    ranks = Ranks()
    with ExitStack() as stack:
        progress: Progress = progress_for(Console(), settings.run.name) if ranks.is_main else NoProgress()
        consumer, publisher, weights = None, None, None
        if ranks.is_main:
            consumer = stack.enter_context(BatchConsumer(kafka, start=settings.data.start, codec=codec))
            publisher = stack.enter_context(Publisher(kafka, codec=codec))
            weights = WeightsPublisher(
                publisher,
                name=settings.model.resource,
                run_id=settings.run.name,
                base=settings.model.path,
                folder=settings.publish_path,
                keep=settings.publish.keep,
                dtype=DTYPES[settings.publish.dtype],
            )
            stack.enter_context(progress)
        loop = Loop(
            settings,
            policy,
            algorithm,
            source=BatchSource(
                ranks,
                KafkaReader(consumer, skips_bad=settings.data.on_bad_batch == "skip") if consumer else None,
                stop,
                tell_every_s=settings.data.batch_wait_s,
                waiting=progress.waiting,
            ),
            checkpoints=Checkpoints(settings.checkpoint_path, ranks, keep=settings.checkpoint.keep),
            outlet=KafkaOutlet(
                ranks, publisher, weights, stop, run_id=settings.run.name, algorithm=algorithm.name
            ),
            progress=progress,
            reference=make_reference(settings, parallel, algorithm),
        )
        state = loop.run()
    log.info(
        "training ended",
        step=state.step,
        num_batches=state.num_batches,
        policy_version=state.policy_version,
        reason="told to" if stop.is_set() else "what was asked for is reached",
    )
