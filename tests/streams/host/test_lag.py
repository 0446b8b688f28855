import pytest

from headrace.streams.host.lag import PartitionLag, Watchdog


def test_no_lag_is_zero_seconds() -> None:
    lag = PartitionLag()
    assert lag.observe(100.0, 7, 7) == 0.0
    assert lag.records == 0


def test_seconds_count_from_when_the_oldest_unprocessed_record_was_first_seen() -> None:
    lag = PartitionLag()
    lag.observe(100.0, 10, 10)
    assert lag.observe(101.0, 10, 12) == 0.0
    assert lag.observe(103.0, 10, 15) == 2.0
    assert lag.records == 5
    assert lag.observe(104.0, 12, 15) == 1.0
    assert lag.observe(105.0, 15, 15) == 0.0


def test_a_backlog_from_before_the_start_is_as_old_as_its_records_say() -> None:
    lag = PartitionLag()
    assert lag.observe(1000.0, 0, 50) == 0.0
    assert lag.observe(1001.0, 0, 50) == 1.0
    lag.processed(400_000)
    assert lag.observe(1002.0, 10, 50) == 602.0
    assert lag.observe(1003.0, 50, 50) == 0.0


@pytest.mark.parametrize(
    ("observations", "bites"),
    [
        ([(0, True, 1), (9, True, 1)], False),
        ([(0, True, 1), (11, True, 1)], True),
        ([(0, True, 1), (9, True, 2), (18, True, 2)], False),
        ([(0, True, 1), (9, False, 1), (18, True, 1)], False),
        ([(0, False, 1), (100, False, 1)], False),
    ],
    ids=["in time", "too long", "progress", "nothing to do in between", "idle"],
)
def test_watchdog(observations: list[tuple[float, bool, int]], bites: bool) -> None:  # noqa: FBT001
    watchdog = Watchdog(10.0, 0.0)
    found = [watchdog.bites(now, pending=pending, mark=mark) for now, pending, mark in observations]
    assert found[-1] is bites
    assert not any(found[:-1])
