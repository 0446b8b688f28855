"""State of a processor apart from its engine: ordered maps of bytes in memory.

`Overlay` holds the changes of one `handle` call above a base that stays untouched, and gives them up
once the call's outputs are acknowledged. `MemoryState` is a whole state in memory: the twin of the
RocksDB table.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol, TypeAlias

from headrace.schemas.errors import FatalError

Change: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value; None deletes the key."""


class Reader(Protocol):
    """The readable half of a state: what an overlay stands on."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key above every key with the prefix; None if there is no such key."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


class _Sorted:
    """A dict of bytes with its keys in order. Inserting moves a list's tail: meant for up to 1e5 keys."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self._keys: list[bytes] = []

    def set(self, key: bytes, value: bytes | None) -> None:
        if key in self.values:
            # The newest write comes last, so that `changes` keeps the order of writing.
            del self.values[key]
        else:
            insort(self._keys, key)
        self.values[key] = value

    def remove(self, key: bytes) -> None:
        if key in self.values:
            del self.values[key]
            del self._keys[bisect_left(self._keys, key)]

    def between(self, start: bytes, end: bytes | None) -> list[bytes]:
        keys = self._keys
        last = len(keys) if end is None else bisect_left(keys, end)
        return keys[bisect_left(keys, start) : last]


class MemoryState:
    """The in-memory twin: a whole state, kept nowhere else."""

    def __init__(self) -> None:
        self._map = _Sorted()

    def get(self, key: bytes) -> bytes | None:
        return self._map.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._map.set(key, value)

    def delete(self, key: bytes) -> None:
        self._map.remove(key)

    def scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for key in self._map.between(max(prefix, start or prefix), prefix_end(prefix)):
            value = self._map.values[key]
            if value is not None:
                yield key, value


class Overlay:
    """Changes above a base: read at once by whoever writes them, given up by `changes`."""

    def __init__(self, base: Reader) -> None:
        self._base = base
        self._map = _Sorted()

    def get(self, key: bytes) -> bytes | None:
        if key in self._map.values:
            return self._map.values[key]
        return self._base.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._map.set(key, value)

    def delete(self, key: bytes) -> None:
        self._map.set(key, None)

    def scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        changed = self._map.between(max(prefix, start or prefix), prefix_end(prefix))
        base = self._base.scan(prefix, start=start)
        return self._merge(changed, base) if changed else base

    def changes(self) -> list[Change]:
        """Return what is to be written: puts, then deletes, each in the order of their last write.

        Puts come first so that a write cut short leaves too much rather than too little. Deletes of
        keys that the base never had are left out: an event that arrives and is done with in one call
        costs the changelog nothing.
        """
        values = self._map.values
        puts: list[Change] = [(key, value) for key, value in values.items() if value is not None]
        has = self._base.get
        deletes: list[Change] = [
            (key, None) for key, value in values.items() if value is None and has(key) is not None
        ]
        return puts + deletes

    def _merge(
        self, changed: list[bytes], base: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, bytes]]:
        values = self._map.values
        below = next(base, None)
        for key in changed:
            while below is not None and below[0] < key:
                yield below
                below = next(base, None)
            if below is not None and below[0] == key:
                below = next(base, None)
            value = values[key]
            if value is not None:
                yield key, value
        while below is not None:
            yield below
            below = next(base, None)


class ReadOnly:
    """A state that refuses to be written to: what `Processor.assigned` is given."""

    def __init__(self, base: Reader) -> None:
        self.get = base.get
        self.scan = base.scan

    def put(self, key: bytes, value: bytes) -> None:
        raise FatalError(
            f"state is only written to in handle(), not here (put of {key[:80]!r}, {len(value)} B)"
        )

    def delete(self, key: bytes) -> None:
        raise FatalError(f"state is only written to in handle(), not here (delete of {key[:80]!r})")
