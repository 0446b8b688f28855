"""Same events, same trajectories: whatever the order, the batches and the deaths (G4)."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import Attempt, logged
from tests.streams.processors.assembling import Host, assemble

from headrace.schemas.records import Record
from headrace.streams.processor import LogRecord


def some_attempts(rng: random.Random) -> list[Record]:
    """A few attempts of every kind, each topic's records in an order that a log could have."""
    records: list[Record] = []
    for number in range(rng.randint(1, 4)):
        a = Attempt(
            f"r{number}", credit_rule=rng.choice(["outcome@1", "per_step@1", "nearest@1", "rewards@1"])
        )
        last = rng.randint(0, 6)
        events: list[Record] = [a.started()]
        for sequence_id in range(1, last + 1):
            kind = rng.random()
            if kind < 0.1:
                continue  # a hole
            if kind < 0.2:
                events.append(a.span(sequence_id, kind="void"))
            elif kind < 0.35:
                events.append(a.reward(rng.random(), sequence_id, name=rng.choice(["outcome", "style"])))
            else:
                events.append(a.call(sequence_id, response=tuple(rng.choices(range(9), k=rng.randint(0, 3)))))
        events += [
            a.reward(rng.random(), name="style", about_sequence_id=1) for _ in range(rng.randint(0, 2))
        ]
        events += [a.reward(rng.random()) for _ in range(rng.randint(0, 2))]
        events.append(a.ended(last, rng.choice(["succeeded", "succeeded", "failed", "timeout"])))
        if rng.random() < 0.2:
            events.append(a.ended(last))
        rng.shuffle(events)
        events += rng.choices(events, k=rng.randint(0, 3))  # published twice
        records += [*events, *a.closing()]
        records += [a.call(rng.randint(1, 7)), a.reward(0.125)]  # late
    return records


def interleave(log: list[LogRecord], rng: random.Random) -> list[LogRecord]:
    """Another order of arrival: each topic in its own order, the topics as it comes."""
    queues: dict[str, list[LogRecord]] = {}
    for record in log:
        queues.setdefault(record.topic, []).append(record)
    out = []
    while queues:
        topic = rng.choice(sorted(queues))
        out.append(queues[topic].pop(0))
        if not queues[topic]:
            del queues[topic]
    return out


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), restarts=st.booleans())
def test_same_events_same_trajectories(seed: int, restarts: bool) -> None:  # noqa: FBT001
    """G4, G5, C12: any order across topics, any split over polls, redelivery, restarts: the same bytes."""
    rng = random.Random(seed)
    log = logged(some_attempts(rng))
    plain = Host()
    plain.feed(log)
    expected = {out.value for out in plain.outputs}
    assert len(plain.trajectories) == len({t.attempt_id for t in plain.trajectories}) > 0

    other = Host()
    order = interleave(log, rng)
    at = 0
    while at < len(order):
        size = rng.randint(1, 7)
        other.feed(order[at : at + size])
        at += size
        if rng.random() < 0.2:
            # Faust comes back at an earlier offset; what was handled is handled again.
            if restarts:
                other.restart()
            at = max(0, at - rng.randint(0, 9))
    assert {out.value for out in other.outputs} == expected
    assert len(other.outputs) == len(plain.outputs)
    assert other.assembler.num_open == 0


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_order_at_all_of_a_well_numbered_attempt(seed: int) -> None:
    """G4: with one reward from outside, even each topic's own order does not matter."""
    rng = random.Random(seed)
    a = Attempt()
    records: list[Record] = [a.started(), *(a.call(i) for i in range(1, 6)), a.reward(0.5), a.ended(6)]
    records.append(a.reward(0.25, 6, name="style", about_sequence_id=2))
    log = logged(records)
    expected = assemble(records)
    shuffled = [*log, *rng.choices(log, k=5)]
    rng.shuffle(shuffled)
    host = Host()
    at = 0
    while at < len(shuffled):
        size = rng.randint(1, 5)
        host.feed(shuffled[at : at + size])
        at += size
    assert host.trajectories == [expected]


def test_a_replay_from_the_start_with_other_batches_keeps_chunks_whole() -> None:
    """After a restart a shorter batch must not replace a longer chunk with the same first offset."""
    a, host = Attempt(), Host()
    log = logged([a.started(), a.call(1), a.call(2), a.call(3)])
    host.feed(log)
    host.restart()
    host.feed(log[:2])
    host.restart()
    end = [record for record in logged([a.started(), a.ended(3)]) if record.offset == 1]
    host.feed([*end, *logged([a.reward()])])
    assert host.trajectories[0].accepted
    assert len(host.trajectories[0].transitions) == 3
