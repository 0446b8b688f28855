"""The batcher killed -9 while trajectories flow: the log alone decides, each batch comes once (G4, G5)."""

import os
import random
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

import pytest
from tests.builders import CODEC
from tests.pipeline import Pipeline, seeded, wait_until
from tests.streams.processors.batcher.test_replay import interleaved, some_group

from headrace.schemas.records import GroupVerdict, Trajectory
from headrace.streams.client import Batch, BatchConsumer
from headrace.streams.client.publisher import Publisher
from headrace.streams.processor import LogRecord
from headrace.streams.processors.batcher.batcher import Batcher
from headrace.streams.processors.batcher.settings import BatcherSettings
from headrace.streams.state import MemoryState

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

SETTINGS = {
    "batch_groups": 3,
    "batch_tokens": 100,
    "max_staleness": 4,
    "min_rollouts": 2,
    "group_deadline_s": 2.0,
    "batch_wait_s": 1.5,
}
ENV = {f"HEADRACE_BATCHER_{name.upper()}": str(value) for name, value in SETTINGS.items()}
NUM_WAVES = 5
GROUPS_A_WAVE = 50


def test_what_it_says_follows_from_the_log_however_often_it_dies(pipeline: Pipeline) -> None:
    with seeded("batcher killed") as rng:
        sink = pipeline.sink().start()
        batcher = pipeline.batcher(1, **ENV)
        names: list[str] = []
        for wave in range(NUM_WAVES):
            batcher.start()
            fresh = [f"g{wave}-{number}-{rng.getrandbits(32):x}" for number in range(GROUPS_A_WAVE)]
            queues = [some_group(rng, name) for name in fresh]
            names += [name for name, queue in zip(fresh, queues, strict=True) if queue]
            publish(pipeline, interleaved(rng, queues))
            target = int(len(names) * rng.uniform(wave / NUM_WAVES, 0.95))
            wait_until(partial(has_verdicts, pipeline, target), what=f"{target} verdicts")
            batcher.kill()
            if rng.random() < 0.3:
                shutil.rmtree(pipeline.state_of(1, "batcher"), ignore_errors=True)
        batcher.start()
        wait_until(lambda: num_groups(pipeline) == len(names), what="every group's verdict")
        wait_until(lambda: pipeline.lag("batcher") == 0, what="no lag of the batcher")
        wait_until(lambda: pipeline.lag("sink") == 0, what="no lag of the sink")
        assert (batcher.running, sink.running) == (True, True)
        shards, verdicts = outputs_of(pipeline)
        check_against_the_log(pipeline, shards, verdicts)
        batches = consumed(pipeline, rng)
        check_batches(pipeline, batches)
        check_tables(pipeline, batches, len(names))
        repeats = sum(shards.values()) - len(shards)
        print(f"{len(names)} groups, {len(batches)} batches, {repeats} of {len(shards)} shards repeated")


def publish(pipeline: Pipeline, trajectories: Sequence[Trajectory]) -> None:
    with Publisher(pipeline.kafka) as publisher:
        for trajectory in trajectories:
            publisher.publish(trajectory)


def has_verdicts(pipeline: Pipeline, number: int) -> bool:
    return pipeline.num_in("groups") >= number


def num_groups(pipeline: Pipeline) -> int:
    return len({message.key() for message in pipeline.read("groups")})


def outputs_of(pipeline: Pipeline) -> tuple[Counter[bytes], Counter[bytes]]:
    """Shards and verdicts as their topics have them, and how often."""
    shards, verdicts = (
        Counter(message.value() or b"" for message in pipeline.read(name)) for name in ("batches", "groups")
    )
    return shards, verdicts


def check_against_the_log(pipeline: Pipeline, shards: Counter[bytes], verdicts: Counter[bytes]) -> None:
    """One batcher that never died, over the same log, says the same, byte for byte; marks included."""
    topic = pipeline.topic("trajectories")
    records = [
        LogRecord(topic, 0, m.offset() or 0, m.timestamp()[1], m.key(), m.value())
        for m in pipeline.read("trajectories")
    ]
    calm = Batcher(pipeline.kafka.topic_prefix, BatcherSettings(**SETTINGS))  # type: ignore[arg-type]
    outputs = calm.handle(0, records, MemoryState())
    assert {o.value for o in outputs if o.topic == pipeline.topic("batches")} == set(shards)
    assert {o.value for o in outputs if o.topic == pipeline.topic("groups")} == set(verdicts)
    assert any(CODEC.decode(record.value, Trajectory).kind == "closed" for record in records)


def consumed(pipeline: Pipeline, rng: random.Random) -> list[Batch]:
    """Every batch, by a trainer that is killed now and then and goes on from its checkpoint."""
    trained: list[Batch] = []
    offsets: dict[str, int] = {}
    while True:
        with BatchConsumer(pipeline.kafka, start=offsets) as consumer:
            fresh: list[Batch] = []
            for _ in range(rng.randint(1, 20)):
                batch = consumer.poll(3.0)
                if batch is None:
                    return trained + fresh
                fresh.append(batch)
        kept = fresh[: rng.randint(0, len(fresh))]
        trained += kept
        offsets = kept[-1].offsets if kept else offsets


def check_batches(pipeline: Pipeline, batches: Sequence[Batch]) -> None:
    """Each accepted last trajectory of a group that was not excluded is in exactly one batch."""
    assert len({batch.batch_id for batch in batches}) == len(batches)
    found = Counter(t.attempt_id for batch in batches for t in batch.trajectories)
    assert set(found.values()) == {1}
    first: dict[str, Trajectory] = {}
    for message in pipeline.read("trajectories"):
        trajectory = CODEC.decode(message.value(), Trajectory)
        if trajectory.kind == "trajectory" and trajectory.is_final:
            first.setdefault(trajectory.rollout_id, trajectory)
    by_group: dict[str, list[str]] = defaultdict(list)
    for trajectory in first.values():
        if trajectory.accepted:
            by_group[trajectory.group_id].append(trajectory.attempt_id)
    decoded = (CODEC.decode(message.value(), GroupVerdict) for message in pipeline.read("groups"))
    batched = {verdict.group_id for verdict in decoded if verdict.status == "batched"}
    wanted = {attempt_id for group_id in batched for attempt_id in by_group[group_id]}
    # A rollout that ended after its group's deadline is late, and in none.
    assert found.keys() <= wanted
    late = wanted - found.keys()
    assert len(late) < len(wanted) * 0.2
    assert {group.group_id for batch in batches for group in batch.groups} == batched


def check_tables(pipeline: Pipeline, batches: Sequence[Batch], num_groups: int) -> None:
    client = pipeline.client()
    try:
        rows = client.query(
            "SELECT batch_id, num_shards = num_shards_seen, attempt_ids FROM batches"
        ).result_rows
        assert {row[0]: sorted(row[2]) for row in rows} == {
            batch.batch_id: sorted(t.attempt_id for t in batch.trajectories) for batch in batches
        }
        assert all(row[1] for row in rows)
        assert client.query("SELECT count(), uniqExact(group_id) FROM groups").first_row == (
            num_groups,
            num_groups,
        )
        marks = client.query("SELECT count() FROM trajectories_log WHERE kind = 'closed'").first_row[0]
        assert marks > 0
        assert client.query("SELECT countIf(credit_rule = 'none@1') FROM trajectories").first_row[0] == 0
    finally:
        client.close()


def test_a_second_process_takes_over(pipeline: Pipeline) -> None:
    """C12: the one that was frozen wakes to find its work taken."""
    with seeded("batcher frozen") as rng:
        one, other = (pipeline.batcher(number, **ENV).start() for number in (1, 2))
        queues = [some_group(rng, f"g{number}") for number in range(80)]
        names = [queue[0].group_id for queue in queues if queue]
        records = interleaved(rng, queues)
        half = len(records) // 2
        publish(pipeline, records[:half])
        wait_until(lambda: pipeline.num_in("groups") > 0, what="a verdict")
        os.kill(one.pid or 0, signal.SIGSTOP)
        publish(pipeline, records[half:])
        wait_until(lambda: num_groups(pipeline) == len(names), what="every group's verdict")
        os.kill(one.pid or 0, signal.SIGCONT)
        wait_until(lambda: pipeline.lag("batcher") == 0, what="no lag")
        shards, verdicts = outputs_of(pipeline)
        check_against_the_log(pipeline, shards, verdicts)
        assert other.running
