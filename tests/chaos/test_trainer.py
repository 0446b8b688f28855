"""The trainer killed -9 at random points: each batch is trained on once, as the weights know it (G5, G9)."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests import tiny_model
from tests.builders import CODEC, TIME
from tests.pipeline import seeded, wait_until
from tests.trainer.test_loop import a_group

from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.records import ResourceVersion, TrainStep
from headrace.schemas.topics import topic_name
from headrace.streams.client.admin import apply_topics
from headrace.streams.client.manifest import manifest_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.tail import Tail
from headrace.streams.processors.batcher.settled import Settled
from headrace.streams.processors.batcher.shards import Sized, make_shards
from headrace.streams.settings import KafkaSettings
from headrace.trainer.checkpoint import TrainState
from headrace.trainer.folders import numbered

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(600)]

NUM_KILLS = 10
WHILE_LOADING = (1, 5)
NUM_BATCHES = 40
START_S = 120.0


class Scene:
    """One stream of batches, and trainers on it."""

    def __init__(self, kafka: KafkaSettings, model: Path, folder: Path) -> None:
        self.kafka = kafka
        self.model = model
        self.folder = folder
        self.processes: list[ProcessorProcess] = []

    def publish(self, rng: random.Random, number: int) -> list[str]:
        """The batches' ids, in order."""
        ids = []
        with Publisher(self.kafka) as publisher:
            for place in range(number):
                members = [
                    each for group in range(2) for each in a_group(f"{place}-{group}", rng, resource=None)
                ]
                sized = [Sized(each, 1000) for each in members]
                (shard,) = make_shards(
                    sized,
                    versions=(1, 1),
                    source_partition=0,
                    last_offset=place,
                    settled=Settled(),
                    time=TIME,
                )
                publisher.publish(shard)
                ids.append(shard.batch_id)
        return ids

    def trainer(self, run: str, *, stop_after: int) -> ProcessorProcess:
        output = self.folder / run
        config = self.folder / f"{run}.toml"
        config.write_text(
            f'[run]\nname = "{run}"\noutput = "{output}"\n'
            f'[model]\npath = "{self.model}"\nresource = "{run}"\n'
            "[optimizer]\nlr = 1e-3\n"
            "[data]\nmax_staleness = 1000\n"
            "[checkpoint]\nevery_steps = 3\nkeep = 2\n"
            "[publish]\nevery_steps = 2\nkeep = 1\n"
            f"[stop]\nmax_steps = {stop_after}\n"
        )
        env = {
            "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_KAFKA_TOPIC_PREFIX": self.kafka.topic_prefix,
            "OMP_NUM_THREADS": "1",
        }
        process = ProcessorProcess(
            "train", self.folder / f"process-{run}", env=env, arguments=("--config", str(config))
        )
        self.processes.append(process)
        return process

    def steps(self, run: str) -> list[TrainStep]:
        """As they stand in the log, those that were taken twice included."""
        with Tail(self.kafka, name="test") as tail:
            places = tail.places(topic_name(TrainStep, self.kafka.topic_prefix))
            records = list(tail.read(tail.beginnings(places), tail.ends(places)))
        found = [CODEC.decode(record.value, TrainStep) for record in records]
        return [step for step in found if step.run_id == run]

    def wait_for_steps(self, run: str, number: int, trainer: ProcessorProcess) -> None:
        def has_come_so_far() -> bool:
            return len(self.steps(run)) >= number or not trainer.running

        wait_until(has_come_so_far, what=f"{number} steps", timeout_s=START_S)

    def versions(self, run: str) -> list[ResourceVersion]:
        with Tail(self.kafka, name="test") as tail:
            places = tail.places(topic_name(ResourceVersion, self.kafka.topic_prefix))
            records = list(tail.read(tail.beginnings(places), tail.ends(places)))
        found = [CODEC.decode(record.value, ResourceVersion) for record in records]
        return [version for version in found if version.name == run]

    def state(self, run: str) -> TrainState:
        """Of the newest checkpoint."""
        folders = numbered(self.folder / run / "checkpoints", "batch-")
        return TrainState.model_validate_json((folders[max(folders)] / "state.json").read_bytes())


@pytest.fixture
def scene(kafka: KafkaBroker, topic_prefix: str, tmp_path: Path) -> Iterator[Scene]:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    apply_topics(settings)
    made = Scene(settings, tiny_model.make(tmp_path / "model"), tmp_path)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()


def check_whole(version: ResourceVersion) -> None:
    """G9: its files are what was published."""
    assert manifest_of(Path(version.uri.removeprefix("file://"))) == version.manifest


def test_killed_at_random_points(scene: Scene) -> None:
    with seeded("trainer") as rng:
        ids = scene.publish(random.Random(3), NUM_BATCHES)
        calm = scene.trainer("calm", stop_after=NUM_BATCHES).start()
        trainer = scene.trainer("killed", stop_after=NUM_BATCHES)
        for kill in range(NUM_KILLS):
            trainer.start()
            # Anywhere: while it loads, on the way to the next step, in the middle of a checkpoint.
            done = len(scene.steps("killed"))
            num_steps = 0 if kill in WHILE_LOADING else rng.randrange(1, 4)
            scene.wait_for_steps("killed", done + num_steps, trainer)
            trainer.kill()
            print(f"killed after {len(scene.steps('killed'))} steps in the log")
            for version in scene.versions("killed")[-1:]:
                check_whole(version)
        trainer.start()
        wait_until(lambda: not trainer.running, what="the end of the run", timeout_s=START_S)
        assert trainer.exit_status == 0, trainer.tail()
        wait_until(lambda: not calm.running, what="the end of the calm run", timeout_s=START_S)
        assert calm.exit_status == 0, calm.tail()

    # What the log says of a step is the same, however often it was taken.
    taken = {step.step: step.batch_ids for step in scene.steps("killed")}
    assert all(taken[step.step] == step.batch_ids for step in scene.steps("killed"))
    assert [batch_id for _, (batch_id,) in sorted(taken.items())] == ids
    assert list(taken) == sorted(taken)
    # Two trainers on one stream, each with all its batches.
    assert [step.batch_ids for step in scene.steps("calm")] == [(batch_id,) for batch_id in ids]

    # A step that came out otherwise the second time is a version more.
    own = {"run_id", "policy_version", "num_versions"}
    killed, undisturbed = scene.state("killed"), scene.state("calm")
    assert killed.model_dump(exclude=own) == undisturbed.model_dump(exclude=own)
    versions = scene.versions("killed")
    assert killed.policy_version == versions[-1].version
    check_whole(versions[-1])
    assert [version.version for version in versions] == list(range(1, len(versions) + 1))
    by_step = {int(version.metadata["step"]): version.trained_on for version in versions}
    assert [batch_id for _, batches in sorted(by_step.items()) for batch_id in batches] == ids
    last, others = (
        load_file(Path(scene.versions(run)[-1].uri.removeprefix("file://")) / "model.safetensors")
        for run in ("killed", "calm")
    )
    assert last.keys() == others.keys()
    # Most resumes come out bit for bit; now and then a process rounds otherwise. A batch that was trained on
    # twice, or left out, moves weights by the learning rate, which is ten times this.
    assert max(float((last[name] - others[name]).abs().max()) for name in last) < 1e-4
    shutil.rmtree(scene.folder / "killed")
