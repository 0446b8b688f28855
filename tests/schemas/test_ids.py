"""Ids: in order of their making, and the version and variant of RFC 9562."""

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas import ids
from headrace.schemas.ids import derived_uuid7, uuid7, uuid7_time_ms

DAY_MS = 86_400_000


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Fix the clock that ids see, in milliseconds; the process's last id is forgotten."""
    monkeypatch.setattr(ids, "_last", 0)
    return lambda time_ms: monkeypatch.setattr(time, "time_ns", lambda: time_ms * 1_000_000)


def assert_is_uuid7(value: str) -> None:
    parsed = uuid.UUID(value)
    assert str(parsed) == value
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122


def test_version_and_variant() -> None:
    for _ in range(1000):
        assert_is_uuid7(uuid7())


def test_the_time_is_the_clock_s() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7_time_ms(uuid7())
    # Ids may run ahead of the clock, by the millisecond that a burst overflowed.
    assert before <= made <= time.time_ns() // 1_000_000 + 1


def test_strictly_increasing_within_a_millisecond(set_clock: Callable[[int], None]) -> None:
    set_clock(1_790_000_000_000)
    made = [uuid7() for _ in range(20_000)]
    assert made == sorted(set(made))
    assert len(made) == 20_000
    assert {uuid7_time_ms(value) for value in made} <= {1_790_000_000_000, 1_790_000_000_001}


def test_strictly_increasing_when_the_clock_steps_back(set_clock: Callable[[int], None]) -> None:
    made = []
    for time_ms in (1_790_000_000_000, 1_790_000_000_000 - DAY_MS, 1, 1_790_000_000_000, 1_790_000_000_001):
        set_clock(time_ms)
        made += [uuid7() for _ in range(100)]
    assert made == sorted(set(made))
    assert len(made) == 500


def test_order_as_text_is_order_as_number(set_clock: Callable[[int], None]) -> None:
    made = []
    for time_ms in (0, 9, 10, 2**40, 2**48 - 1):
        set_clock(time_ms)
        made.append(uuid7())
    assert made == sorted(made, key=lambda value: uuid.UUID(value).int) == sorted(made)
    assert [uuid7_time_ms(value) for value in made] == [0, 9, 10, 2**40, 2**48 - 1]


def test_an_overflowing_millisecond_borrows_the_next(
    set_clock: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(1_790_000_000_000)
    monkeypatch.setattr(ids, "_last", (1_790_000_000_000 << 74) | ((1 << 74) - 1))
    value = uuid7()
    assert_is_uuid7(value)
    assert uuid7_time_ms(value) == 1_790_000_000_001


def test_threads_never_share_an_id_and_each_sees_its_own_increase() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    start = threading.Barrier(len(made))

    def work(own: list[str]) -> None:
        start.wait()
        own += [uuid7() for _ in range(2_000)]

    threads = [threading.Thread(target=work, args=(own,)) for own in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == sorted(own) for own in made)
    assert len({value for own in made for value in own}) == 16_000


@given(time_ms=st.integers(0, 2**48 - 1), seed=st.lists(st.text(st.characters(codec="utf-8"))))
def test_derived_ids_are_uuid7_of_their_time(time_ms: int, seed: list[str]) -> None:
    value = derived_uuid7(time_ms, *seed)
    assert_is_uuid7(value)
    assert uuid7_time_ms(value) == time_ms
    assert derived_uuid7(time_ms, *seed) == value


def test_derived_ids_are_the_same_for_ever() -> None:
    """Traces that were imported once are known again by every later program."""
    assert derived_uuid7(1_790_000_000_000, "file.jsonl", "7") == "01a0c450-6c00-7059-86bb-bb145f92b81e"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, "a"), (2, "a")),
        ((1, "a"), (1, "b")),
        ((1, "a", "b"), (1, "b", "a")),
        ((1, "ab", "c"), (1, "a", "bc")),
        ((1, "a"), (1, "a", "")),
        ((1,), (1, "a")),
    ],
    ids=["time", "word", "order", "boundary", "empty word", "no word"],
)
def test_other_seeds_give_other_ids(a: tuple[int, str], b: tuple[int, str]) -> None:
    assert derived_uuid7(*a) != derived_uuid7(*b)
