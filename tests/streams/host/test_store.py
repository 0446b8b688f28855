from pathlib import Path

import pytest

from headrace.streams.host.store import StateStore


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def open_store(folder: Path, clock: Clock) -> StateStore:
    return StateStore(
        folder, "state", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20, max_age_s=60, clock=clock
    )


def test_data_and_offset_are_kept_together(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock)
    assert store[3].offset() is None
    store.apply(3, [(b"a", b"1"), (b"b", b"2")], 7)
    store.apply(3, [(b"a", None)], None)
    store.close_all()
    store = open_store(tmp_path, clock)
    assert (store[3].offset(), list(store[3].scan(b""))) == (7, [(b"b", b"2")])
    assert store[2].get(b"b") is None
    store.close_all()


def test_files_too_old_are_rebuilt(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock)
    store.apply(0, [(b"a", b"1")], 7)
    store.close(0)
    clock.now_s += 61
    assert store[0].offset() is None
    assert list(store[0].scan(b"")) == []
    store.close_all()


def test_a_file_in_use_is_refused_by_the_name_of_the_lock(tmp_path: Path) -> None:
    store, other = open_store(tmp_path, Clock()), open_store(tmp_path, Clock())
    store[0].get(b"a")
    with pytest.raises(Exception, match=r"(?i)lock"):
        other[0].get(b"a")
    store.close(0)
    assert other[0].get(b"a") is None
    other.close_all()
