"""RocksDB files of a processor's state, one per partition number.

What Faust's own store does otherwise, and why it is not used as it is:

- it finds the partition of a write through `current_event()`, which in a batch is only the last event:
  here the partition is always named;
- it opens every partition with a block cache of 2 GB: here all partitions share one small cache and one
  write buffer budget;
- it writes the changelog offset of a change as soon as Kafka has acknowledged it, apart from the data: here
  data and offset are one write, so that the offset is never ahead of the data, whatever is killed when;
- it trusts old files: changes deleted since, and compacted away in the changelog, would stay for ever. Here
  files not written for `max_age_s` are dropped and rebuilt.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import rocksdict
from rocksdict import Rdict

from headrace.streams.state import Change, prefix_end

OFFSET_KEY = b"__faust\0offset__"
"""Faust's own name for it."""
SAVED_AT_KEY = b"__headrace\0saved_at__"
_RESERVED = frozenset((OFFSET_KEY, SAVED_AT_KEY))
_WRITE_BUFFER_BYTES = 4 << 20


class PartitionStore:
    """One partition's file."""

    def __init__(self, path: Path, options: rocksdict.Options) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = Rdict(str(path), options=options)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, prefix: bytes, *, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        read_options = rocksdict.ReadOptions()
        end = prefix_end(prefix)
        if end is not None:
            # Without the bound, a scan walks over all deleted keys behind its last one.
            read_options.set_iterate_upper_bound(end)
        cursor = self._db.iter(read_options)
        cursor.seek(max(prefix, start or prefix))
        while cursor.valid():
            key = cursor.key()
            if key not in _RESERVED:
                yield key, cursor.value()
            cursor.next()
        cursor.status()

    def apply(self, changes: Iterable[Change], offset: int | None, saved_at_s: float) -> None:
        """Write changes and the changelog offset of the last of them, all or nothing."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if offset is not None:
            batch.put(OFFSET_KEY, b"%d" % offset)
        batch.put(SAVED_AT_KEY, b"%d" % saved_at_s)
        self._db.write(batch)

    def offset(self) -> int | None:
        value = self.get(OFFSET_KEY)
        return None if value is None else int(value)

    def saved_at_s(self) -> int:
        return int(self.get(SAVED_AT_KEY) or 0)

    def close(self) -> None:
        self._db.close()


class StateStore:
    """The files of all partitions assigned to this process.

    Opening one that another process still holds raises an Exception that names the lock.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        block_cache_bytes: int,
        write_buffer_bytes: int,
        max_age_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._name = name
        self._max_age_s = max_age_s
        self._clock = clock
        self._cache = rocksdict.Cache(block_cache_bytes)
        self._write_buffers = rocksdict.WriteBufferManager(write_buffer_bytes, allow_stall=False)
        self._open: dict[int, PartitionStore] = {}

    def __getitem__(self, partition: int) -> PartitionStore:
        """Return the partition's file, opened if need be; too old a file is dropped first."""
        if partition not in self._open:
            store = PartitionStore(self._path(partition), self._options())
            if store.offset() is not None and self._clock() - store.saved_at_s() > self._max_age_s:
                store.close()
                Rdict.destroy(str(store.path), self._options())
                store = PartitionStore(store.path, self._options())
            self._open[partition] = store
        return self._open[partition]

    def apply(self, partition: int, changes: Iterable[Change], offset: int | None) -> None:
        self[partition].apply(changes, offset, self._clock())

    def close(self, partition: int) -> None:
        store = self._open.pop(partition, None)
        if store is not None:
            store.close()

    def close_all(self) -> None:
        for partition in list(self._open):
            self.close(partition)

    def _path(self, partition: int) -> Path:
        return self._folder / f"{self._name}-{partition}.db"

    def _options(self) -> rocksdict.Options:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(2)
        options.set_max_background_jobs(2)
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_write_buffer_manager(self._write_buffers)
        options.set_target_file_size_base(8 << 20)
        options.set_max_bytes_for_level_base(32 << 20)
        # State of finished work is deleted soon after it was written: compact where deletions gather.
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_bloom_filter(10, block_based=False)
        options.set_block_based_table_factory(table)
        return options
