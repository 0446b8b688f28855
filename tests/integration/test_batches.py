"""From a file of tasks to the batches of a trainer, by real processes all the way (G3, G5, C1, C14)."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.builders import CODEC
from tests.pipeline import HOST, Pipeline, wait_until
from tests.streams.runner.harness import DISPATCHER, RUNNER

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.records import AttemptEvent, GroupVerdict, RolloutConfig
from headrace.streams.client import Batch, BatchConsumer, Client, Publisher, publish_resource

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
DOES = ["differ"] * 5 + ["fail once"] * 2 + ["alike"] * 2 + ["hang"]
NUM_SAMPLES = 4
BATCHER = HOST | {
    "HEADRACE_BATCHER_BATCH_GROUPS": "3",
    "HEADRACE_BATCHER_GROUP_DEADLINE_S": "5",
    "HEADRACE_BATCHER_BATCH_WAIT_S": "4",
}


def process(pipeline: Pipeline, name: str, env: Mapping[str, str], *arguments: str) -> ProcessorProcess:
    folder = pipeline.folder / name
    state = {"HEADRACE_HOST_STATE_DIR": str(folder / "state"), "HEADRACE_HOME": str(folder / "home")}
    return ProcessorProcess(name, folder, env=pipeline.places() | state | dict(env), arguments=arguments)


def lines(path: Path, tasks: list[str]) -> str:
    path.write_text("".join(json.dumps({"do": do}) + "\n" for do in tasks))
    return str(path)


def test_tasks_become_batches(pipeline: Pipeline, tmp_path: Path) -> None:
    with Publisher(pipeline.kafka) as publisher:
        publish_resource(publisher, "policy", "weights", uri="file:///nowhere")
    runner = ("group_agent:sample", "--app-dir", str(HERE), "--concurrency", "16")
    feed = process(
        pipeline, "feed", {}, lines(tmp_path / "tasks.jsonl", DOES), "--group-size", str(NUM_SAMPLES),
        "--val", lines(tmp_path / "val.jsonl", ["differ", "fail once"]), "--val-at-start",
        "--val-samples", "2",
        "--retry-on", "failed", "--reward-grace", "0",
    )  # fmt: skip
    processes = [
        process(pipeline, "dispatcher", DISPATCHER),
        process(pipeline, "assembler", HOST),
        process(pipeline, "batcher", BATCHER),
        process(pipeline, "runner", RUNNER, *runner),
        feed,
    ]
    try:
        for each in processes:
            each.start()
        wait_until(lambda: feed.exit_status is not None, what="the end of feeding", timeout_s=120)
        said = feed.log_path.read_text()
        assert feed.exit_status == 0, said
        check(pipeline, said)
    finally:
        for each in processes:
            each.kill()


def test_c15_groups_that_versions_have_overtaken_never_train(pipeline: Pipeline, tmp_path: Path) -> None:
    """Versions come in the middle of rollouts: their calls are of weights that are too old by then."""
    door = tmp_path / "door"
    os.mkfifo(door)
    settings = BATCHER | {"HEADRACE_BATCHER_BATCH_GROUPS": "2", "HEADRACE_BATCHER_MAX_STALENESS": "1"}
    runner = ("group_agent:sample", "--app-dir", str(HERE), "--concurrency", "16")
    processes = [
        process(pipeline, "dispatcher", DISPATCHER),
        process(pipeline, "assembler", HOST),
        process(pipeline, "batcher", settings),
        process(pipeline, "runner", RUNNER, *runner),
    ]

    def verdicts() -> list[GroupVerdict]:
        return [CODEC.decode(message.value(), GroupVerdict) for message in pipeline.read("groups")]

    with Client(pipeline.kafka) as client:
        try:
            publish_resource(client, "policy", "weights", uri="file:///1")
            for each in processes:
                each.start()
            config = RolloutConfig(reward_grace_s=0)
            held = client.enqueue([{"do": "differ", "until": str(door)}] * 2, num_samples=2, config=config)
            wait_until(lambda: len(pipeline.read("spans")) == 4, what="the calls of version 1")
            for number in (2, 3):
                publish_resource(client, "policy", "weights", uri=f"file:///{number}")
            pins = {"policy": 3}
            fresh = client.enqueue([{"do": "differ"}] * 2, num_samples=2, config=config, resources=pins)
            wait_until(lambda: len(verdicts()) == 2, what="verdicts of groups of version 3")
            door.write_bytes(b"")
            wait_until(lambda: len(verdicts()) == 4, what="verdicts of groups of version 1")
        finally:
            for each in processes:
                each.kill()
    fates = {verdict.group_id: (verdict.status, verdict.reason, verdict.staleness) for verdict in verdicts()}
    assert fates == {
        **{each.group_id: ("batched", None, 0) for each in fresh},
        **{each.group_id: ("excluded", "stale", 2) for each in held},
    }
    trained = {group.group_id for batch in read(pipeline, num_groups=2) for group in batch.groups}
    assert trained == {each.group_id for each in fresh}


def check(pipeline: Pipeline, said: str) -> None:
    verdicts = [CODEC.decode(message.value(), GroupVerdict) for message in pipeline.read("groups")]
    fates = Counter(verdict.reason or verdict.status for verdict in verdicts)
    assert fates == {"batched": 8, "no_contrast": 2, "mode_val": 2}
    batches = read(pipeline, num_groups=8)
    sizes = Counter(len(group.trajectories) for batch in batches for group in batch.groups)
    assert sizes == {NUM_SAMPLES: 7, NUM_SAMPLES - 1: 1}  # one has a straggler
    attempts = Counter(t.attempt for batch in batches for t in batch.trajectories)
    assert attempts == {1: 5 * NUM_SAMPLES + NUM_SAMPLES - 1, 2: 2 * NUM_SAMPLES}  # the last of each rollout
    assert {(batch.policy_version_min, batch.policy_version_max) for batch in batches} == {(1, 1)}
    assert "validation of version 1: outcome 0.5 over 4 of 4 rollouts" in said
    assert "10 of 10 groups are fed: 8 batched, 2 no_contrast" in said
    started = [CODEC.decode(message.value(), AttemptEvent) for message in pipeline.read("attempts")]
    given = [event.origin.resources for event in started if event.kind == "started" and event.origin]
    assert all(each == {"policy": 1} for each in given)


def read(pipeline: Pipeline, *, num_groups: int) -> list[Batch]:
    """Batches until there are so many groups, and no more."""
    found: list[Batch] = []
    with BatchConsumer(pipeline.kafka, timeout_s=30.0) as consumer:
        while sum(len(batch.groups) for batch in found) < num_groups:
            found.append(next(consumer))
        assert consumer.poll(0.5) is None
    return found
