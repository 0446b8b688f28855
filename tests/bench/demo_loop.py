"""The demo's own loop, of all its parts, for some batches: what it left in Kafka."""

from typing import NamedTuple

from rich.console import Console
from tests.bench.parts import Lane, say
from tests.bench.watch import Watch, wait_until

from headrace.cli.demo.audit import Log
from headrace.cli.demo.recipe import Recipe
from headrace.cli.demo.stack import DemoStack
from headrace.cli.demo.training import start_training
from headrace.cli.demo_commands import PROCESSORS
from headrace.schemas.records import AttemptEvent, TrainStep
from headrace.schemas.topics import topic_name

_SEED = 0
_LIMIT_S = 900.0


class Played(NamedTuple):
    steps: list[TrainStep]
    events: list[AttemptEvent]


def play(lane: Lane, recipe: Recipe, num_batches: int) -> Played:
    """At least so many batches, the first of which waited for all to start."""
    # Its progress is for people.
    console = Console(stderr=True)
    stack = DemoStack(lane.folder / "demo", lane.kafka, lane.clickhouse, console, lane.processes)
    stack.environment = {**lane.environment, **recipe.environment()}
    stack.home.mkdir(parents=True)
    for processor in PROCESSORS:
        stack.start(stack.process(processor))
    watch, topic = Watch(lane.kafka), topic_name(TrainStep, lane.kafka.topic_prefix)
    with start_training(stack, recipe, _SEED, console) as training:

        def is_over() -> bool:
            training.check()
            return watch.num_records(topic) >= num_batches

        wait_until(
            is_over, what=f"{num_batches} batches", processes=stack.services, every_s=0.5, limit_s=_LIMIT_S
        )
    log = Log(lane.kafka)
    steps = sorted(log.read(TrainStep), key=lambda each: each.time)
    for step in steps:
        spent = ", ".join(f"{name} {spent_s:.2f} s" for name, spent_s in step.durations_s.items())
        say(f"trainer: step {step.step}, {step.num_trajectories} rollouts: {spent}")
    return Played(steps, log.read(AttemptEvent))
