"""The same log gives the same batches, whatever happens to whoever makes them (G4, G5, C12)."""

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import EPOCH_MS
from tests.streams.processors.batcher.scene import (
    Host,
    batch_wait,
    deadline,
    pair,
    trajectory,
    transition,
)

from headrace.schemas.records import Trajectory
from headrace.streams.processor import Output

SETTINGS = {"batch_groups": 3, "batch_tokens": 60, "max_staleness": 3, "min_rollouts": 2}
seeds = st.integers(0, 2**32)


def some_group(rng: random.Random, name: str) -> list[Trajectory]:
    """Its attempts in an order that a log could have, with what is tried again, doubled, late or missing."""
    size = rng.randint(1, 4)
    mode = rng.choice(["train", "train", "train", "train", "val"])
    found: list[Trajectory] = []
    for rollout in range(size):
        attempts = [
            trajectory(
                name,
                rollout,
                None,
                accepted=False,
                is_final=False,
                attempt=number,
                group_size=size,
                mode=mode,
            )
            for number in range(1, rng.randint(1, 3))
        ]
        if rng.random() < 0.9:
            calls = tuple(
                transition(step, resource_version=rng.randint(1, 6)) for step in range(rng.randint(1, 3))
            )
            attempts.append(
                trajectory(
                    name,
                    rollout,
                    rng.choice([0.0, 0.0, 1.0]),
                    accepted=rng.random() < 0.8,
                    attempt=len(attempts) + 1,
                    group_size=size,
                    mode=mode,
                    transitions=calls,
                )
            )
        found += attempts
    found += rng.choices(found, k=rng.randint(0, 2)) if found else []
    return found


def interleaved(rng: random.Random, queues: Sequence[list[Trajectory]]) -> list[Trajectory]:
    left = [list(queue) for queue in queues if queue]
    out = []
    while left:
        queue = rng.choice(left)
        out.append(queue.pop(0))
        left = [each for each in left if each]
    return out


def some_log(rng: random.Random) -> list[Trajectory]:
    """Groups of every kind among marks, and at the end a mark for each that is still open or waits."""
    names = [f"g{number}" for number in range(rng.randint(1, 7))]
    records = interleaved(rng, [some_group(rng, name) for name in names])
    for name in rng.choices(names, k=rng.randint(0, 3)):
        records.insert(rng.randint(0, len(records)), rng.choice([deadline, batch_wait])(name))
    return [*records, *map(deadline, names), *map(batch_wait, names)]


def plain(records: Sequence[Trajectory]) -> Host:
    """Every record once, one at a time."""
    host = Host(**SETTINGS)
    for number, record in enumerate(records):
        host.feed(record, time_ms=EPOCH_MS + number)
    return host


def as_set(outputs: Sequence[Output]) -> set[Output]:
    return set(outputs)


@settings(max_examples=150, deadline=None)
@given(seed=seeds)
def test_any_split_with_any_death_gives_the_same_batches(seed: int) -> None:
    """Killed with all, some or none of its changes kept: byte for byte the same."""
    rng = random.Random(seed)
    expected = plain(some_log(rng))
    assert len(expected.outputs) == len(as_set(expected.outputs))

    other = Host(**SETTINGS)
    at, committed, num_deaths = 0, 0, 0
    while at < len(expected.log):
        until = min(len(expected.log), at + rng.randint(1, 9))
        if rng.random() < 0.3 and num_deaths < 20:
            num_deaths += 1
            other.handle(expected.log[at:until], num_changes=rng.randint(0, 12))
            at = committed
        else:
            other.handle(expected.log[at:until])
            at = until
            if rng.random() < 0.6:
                committed = at
            if rng.random() < 0.2:
                other.restart()
                at = committed
    assert as_set(other.outputs) == as_set(expected.outputs)
    assert other.batcher.num_open == expected.batcher.num_open
    other.handle([])  # what a cut write left over goes with the next call
    assert dict(other.state.scan(b"")) == dict(expected.state.scan(b""))
    if num_deaths == 0:
        assert len(other.outputs) == len(expected.outputs)


@settings(max_examples=150, deadline=None)
@given(seed=seeds)
def test_every_group_has_one_fate_and_every_rollout_one_batch(seed: int) -> None:
    records = some_log(random.Random(seed))
    host = plain(records)
    trajectories = [record for record in records if record.kind == "trajectory"]
    verdicts = host.verdicts
    assert set(verdicts) == {t.group_id for t in trajectories}
    members = [t for shard in host.shards for t in shard.trajectories]
    assert max(Counter(t.rollout_id for t in members).values(), default=1) == 1
    assert all(t.accepted and t.is_final and t.mode == "train" for t in members)
    by_group = Counter(t.group_id for t in members)
    for group_id, verdict in verdicts.items():
        assert by_group[group_id] == (verdict.num_accepted if verdict.status == "batched" else 0)
    ends = [shard.last_offset for shard in host.shards if shard.shard == 0]
    assert ends == sorted(set(ends))  # what tells a repeat from a new batch


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_what_becomes_of_a_group_does_not_depend_on_what_stands_between_its_records(seed: int) -> None:
    """But for staleness, which others show."""
    rng = random.Random(seed)
    groups = [some_group(rng, f"g{number}") for number in range(5)]
    marks = [mark(f"g{number}") for mark in (deadline, batch_wait) for number in range(5)]
    hosts = []
    for _ in range(2):
        host = Host(**(SETTINGS | {"max_staleness": None}))
        host.feed(*interleaved(rng, groups), *marks)
        hosts.append(host)
    one, other = ({t.attempt_id for shard in host.shards for t in shard.trajectories} for host in hosts)
    assert one == other
    assert hosts[0].reasons() == hosts[1].reasons()


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_the_same_trajectories_have_the_same_batch_id_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    groups = [pair(name, *(rng.choice([[0.0, 1.0], [1.0, 0.0, 0.5]]))) for name in "abc"]
    ids = set()
    for _ in range(2):
        host = Host(batch_groups=3)
        host.feed(*interleaved(rng, groups))
        ids |= {(shard.batch_id, shard.manifest_hash, shard.trajectories) for shard in host.shards}
    assert len(ids) == 1


@settings(max_examples=100, deadline=None)
@given(seed=seeds)
def test_a_cursor_that_a_frozen_process_wrote_late_loses_nothing(seed: int) -> None:
    """What is committed was handled, whatever the changelog's last cursor says (C12)."""
    rng = random.Random(seed)
    groups = [pair(f"g{number}", *([0.0, 1.0, 0.5][: rng.randint(2, 3)])) for number in range(8)]
    marks = [mark(f"g{number}") for mark in (deadline, batch_wait) for number in range(8)]
    expected = Host(**SETTINGS)
    expected.feed(*interleaved(rng, groups), *marks)

    other = Host(**SETTINGS)
    at, cursors = 0, [b"[-1,{}]"]
    while at < len(expected.log):
        until = at + rng.randint(1, 5)
        other.handle(expected.log[at:until])
        at = until
        cursors.append(other.state.get(b"c") or b"")
        if rng.random() < 0.3:
            other.state.put(b"c", rng.choice(cursors))
            other.restart()
    assert as_set(other.outputs) == as_set(expected.outputs)
    assert len(other.outputs) == len(expected.outputs)


def test_state_is_written_once_for_each_trajectory() -> None:
    """The changelog is linear in what comes: a large group does not write its earlier members again."""
    host = Host(batch_groups=100)
    sizes = []
    for rollout in range(64):
        before = sum(len(value) for _, value in host.state.scan(b""))
        host.feed(trajectory("g", rollout, float(rollout), group_size=64))
        sizes.append(sum(len(value) for _, value in host.state.scan(b"")) - before)
    assert max(sizes[1:]) - min(sizes[1:]) < 100
