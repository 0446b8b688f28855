"""What every State promises: the twin in memory, an overlay, and the RocksDB files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.schemas.errors import FatalError
from headrace.streams.host.store import StateStore
from headrace.streams.processor import State
from headrace.streams.state import MemoryState, Overlay, ReadOnly, prefix_end

KEYS = st.binary(max_size=4).map(lambda key: bytes(b % 3 * 127 for b in key))
"""Few bytes, 0x00 to 0xfe, so that prefixes meet; and 0xff is added below."""
ANY_KEYS = KEYS | st.sampled_from([b"\xff", b"\xff\xff", b"a\xff", b"a\xff\x00"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ANY_KEYS, st.binary(max_size=3)),
        st.tuples(st.just("delete"), ANY_KEYS, st.just(b"")),
        st.tuples(st.just("keep"), st.just(b""), st.just(b"")),
    ),
    max_size=30,
)

Kept = Callable[[], State]
"""Keeps what was written so far, and returns the state to go on with."""


def rocks(folder: Path) -> StateStore:
    return StateStore(folder, "t", block_cache_bytes=1 << 20, write_buffer_bytes=1 << 20, max_age_s=60)


@pytest.fixture(params=["memory", "overlay on memory", "overlay on RocksDB"])
def open_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], tuple[State, Kept]]]:
    stores: list[StateStore] = []

    def on_memory() -> tuple[State, Kept]:
        state = MemoryState()
        return state, lambda: state

    def on_overlay() -> tuple[State, Kept]:
        base = MemoryState()
        overlay = Overlay(base)

        def keep() -> State:
            nonlocal overlay
            for key, value in overlay.changes():
                base.delete(key) if value is None else base.put(key, value)
            overlay = Overlay(base)
            return overlay

        return overlay, keep

    def on_rocks() -> tuple[State, Kept]:
        store = rocks(tmp_path / str(len(stores)))
        stores.append(store)
        overlay = Overlay(store[0])

        def keep() -> State:
            nonlocal overlay
            store.apply(0, overlay.changes(), 1)
            overlay = Overlay(store[0])
            return overlay

        return overlay, keep

    yield {"memory": on_memory, "overlay on memory": on_overlay, "overlay on RocksDB": on_rocks}[
        request.param
    ]
    for store in stores:
        store.close_all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS, prefix=ANY_KEYS, start=st.none() | ANY_KEYS)
def test_behaves_as_a_sorted_dict(
    open_state: Callable[[], tuple[State, Kept]],
    operations: list[tuple[str, bytes, bytes]],
    prefix: bytes,
    start: bytes | None,
) -> None:
    state, keep = open_state()
    model: dict[bytes, bytes] = {}
    for operation, key, value in operations:
        if operation == "put":
            state.put(key, value)
            model[key] = value
        elif operation == "delete":
            state.delete(key)
            model.pop(key, None)
        else:
            state = keep()
        assert state.get(key) == model.get(key)
    wanted = [(k, v) for k, v in sorted(model.items()) if k.startswith(prefix) and k >= (start or b"")]
    assert list(state.scan(prefix, start=start)) == wanted


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"a\x00", b"a\x01")],
)
def test_prefix_end(prefix: bytes, end: bytes | None) -> None:
    assert prefix_end(prefix) == end


def test_changes_put_before_they_delete_and_leave_out_what_never_was() -> None:
    base = MemoryState()
    base.put(b"old", b"1")
    overlay = Overlay(base)
    overlay.delete(b"old")
    overlay.put(b"event", b"1")
    overlay.delete(b"event")
    overlay.put(b"b", b"1")
    overlay.put(b"a", b"1")
    overlay.put(b"b", b"2")
    assert overlay.changes() == [(b"a", b"1"), (b"b", b"2"), (b"old", None)]
    assert base.get(b"old") == b"1"


def test_read_only_state_refuses_writes() -> None:
    base = MemoryState()
    base.put(b"a", b"1")
    state = ReadOnly(base)
    assert (state.get(b"a"), list(state.scan(b""))) == (b"1", [(b"a", b"1")])
    with pytest.raises(FatalError, match="only written to in handle"):
        state.put(b"a", b"2")
    with pytest.raises(FatalError, match="only written to in handle"):
        state.delete(b"a")
