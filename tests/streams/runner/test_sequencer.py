"""G2: one place hands out an attempt's ids."""

import threading

from headrace.streams.runner.sequencer import LocalSequencer


def test_ids_count_from_one() -> None:
    sequencer = LocalSequencer()
    assert sequencer.last == 0
    assert [sequencer.next() for _ in range(3)] == [1, 2, 3]
    assert sequencer.last == 3


def test_no_two_threads_get_the_same_id() -> None:
    sequencer = LocalSequencer()
    given: list[int] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        given.extend([sequencer.next() for _ in range(500)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 4001))
    assert sequencer.last == 4000
