import random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.host.positions import Positions

TP = ("t", 0)


class Fetched(NamedTuple):
    offset: int


def fetched(*offsets: int) -> list[Fetched]:
    return [Fetched(offset) for offset in offsets]


def begin(offset: int) -> Positions:
    positions = Positions()
    positions.reset({TP: offset})
    return positions


def test_only_what_comes_next_is_admitted() -> None:
    positions = begin(5)
    assert positions.admit(TP, fetched(3, 4)) == ((), None)
    assert positions.admit(TP, fetched(4, 5, 6)) == (fetched(5, 6), None)
    assert positions.admit(("t", 1), fetched(0)) == ((), None)


def test_records_ahead_are_fetched_again_from_the_gap() -> None:
    positions = begin(5)
    assert positions.admit(TP, fetched(9, 10)) == ((), 5)
    assert positions.admit(TP, fetched(5, 6)) == (fetched(5, 6), None)


def test_a_gap_met_twice_is_believed() -> None:
    positions = begin(5)
    assert positions.admit(TP, fetched(9, 10)) == ((), 5)
    assert positions.admit(TP, fetched(9, 10, 11)) == (fetched(9, 10, 11), None)


def test_what_is_processed_can_be_committed_once() -> None:
    positions = begin(5)
    assert positions.committable() == {}
    positions.advance(TP, 8)
    assert positions.committable() == {TP: 8}
    positions.committed({TP: 8})
    assert positions.committable() == {}
    assert positions.committed_total() == 8


def test_nothing_of_a_partition_given_up_can_be_committed() -> None:
    positions = begin(5)
    positions.clear()
    positions.advance(TP, 8)
    assert positions.committable() == {}


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), gaps=st.sets(st.integers(0, 60)))
def test_every_record_once_in_order_whatever_is_dropped_or_handed_over_late(
    seed: int, gaps: set[int]
) -> None:
    """A consumer that loses fetches, and that is reset while one is on its way."""
    rng = random.Random(seed)
    log = [offset for offset in range(80) if offset not in gaps]
    positions, cursor = begin(0), 0
    seen: list[int] = []
    for _ in range(5000):
        batch = fetched(*[offset for offset in log if offset >= cursor][: rng.randint(1, 9)])
        cursor = batch[-1].offset + 1 if batch else cursor
        if rng.random() < 0.2:
            positions.dropped()
            continue
        if rng.random() < 0.1 or not batch:
            cursor = positions[TP]
            positions.reset({TP: cursor})
        admitted, rewind = positions.admit(TP, batch)
        if rewind is not None:
            cursor = rewind
        elif admitted:
            seen += [record.offset for record in admitted]
            positions.advance(TP, seen[-1] + 1)
    assert seen == log
