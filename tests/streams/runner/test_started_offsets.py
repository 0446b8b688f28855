"""What may be committed: everything before the lowest task that is not started."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.runner.started_offsets import StartedOffsets


@given(st.permutations(range(12)), st.integers(0, 12))
def test_it_never_passes_a_task_that_is_not_started(order: list[int], num_started: int) -> None:
    offsets = StartedOffsets()
    for offset in range(12):
        offsets.take(0, 100 + offset)
    started = set(order[:num_started])
    for offset in order[:num_started]:
        offsets.start(0, 100 + offset)
    lowest = min(set(range(12)) - started, default=12)
    assert offsets.committable() == {0: 100 + lowest}


def test_gaps_in_the_log_are_no_tasks() -> None:
    offsets = StartedOffsets()
    offsets.take(3, 5)
    offsets.take(3, 9)
    offsets.start(3, 5)
    assert offsets.committable() == {3: 9}
    offsets.start(3, 9)
    assert offsets.committable() == {3: 10}


def test_partitions_are_apart_and_forgotten() -> None:
    offsets = StartedOffsets()
    offsets.take(0, 1)
    offsets.take(1, 7)
    offsets.forget([0])
    offsets.start(0, 1)
    assert offsets.committable() == {1: 7}


def test_it_waits_for_starts() -> None:
    offsets = StartedOffsets()
    offsets.take(0, 1)
    assert offsets.wait([1], 0)
    assert not offsets.wait([0], 0)
    thread = threading.Thread(target=offsets.start, args=(0, 1))
    thread.start()
    assert offsets.wait([0], 10)
    thread.join()
