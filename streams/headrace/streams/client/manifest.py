"""Manifests: the sha256 of every file under a folder, read whole (G9).

A file that changes while it is read, or that comes or goes meanwhile, is an error: what is still being
written is no version.
"""

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from headrace.schemas.errors import FatalError, RetryableError

_CHUNK_BYTES = 1 << 20
# Hashing lets other threads run; more than this a disk does not serve faster.
_NUM_THREADS = 4


class BadResourceError(FatalError):
    """What was given can't be a resource's version."""


class ResourceChangedError(RetryableError):
    """Files changed while they were read: somebody is still writing them."""


class _Seen(NamedTuple):
    num_bytes: int
    modified_ns: int


def manifest_of(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> dict[str, str]:
    """sha256 by path within the folder, with `/`; of a single file, by its name.

    `on_bytes` is told how many bytes more are read, from several threads. Links are followed.
    BadResourceError for what can't be read, an empty folder and what is no file; ResourceChangedError.
    """
    before = files_of(path)
    if not before:
        raise BadResourceError(f"there are no files in {path}")
    base = path if path.is_dir() else path.parent

    def hashed(name: str) -> str:
        return _sha256(base / name, on_bytes)

    with ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1)) as pool:
        manifest = dict(zip(before, pool.map(hashed, before), strict=True))
    after = files_of(path)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise ResourceChangedError(
            f"{path / changed[0]} changed while it was read: is it still being written?"
        )
    return manifest


def files_of(path: Path) -> dict[str, _Seen]:
    """Every file by its name in a manifest, sorted."""
    try:
        if not path.is_dir():
            return {path.name: _seen(path)}
        found = {}
        for folder, _, names in os.walk(path, onerror=_raise, followlinks=True):
            for name in names:
                file = Path(folder, name)
                found[file.relative_to(path).as_posix()] = _seen(file)
    except OSError as error:
        raise _unreadable(error) from error
    return dict(sorted(found.items()))


def _seen(file: Path) -> _Seen:
    if not file.is_file() and file.exists():
        raise BadResourceError(f"{file} is no ordinary file")
    status = file.stat()
    return _Seen(status.st_size, status.st_mtime_ns)


def _sha256(file: Path, on_bytes: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    try:
        with file.open("rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                digest.update(buffer[:size])
                on_bytes(size)
    except OSError as error:
        raise _unreadable(error) from error
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _unreadable(error: OSError) -> BadResourceError:
    return BadResourceError(f"{error.filename} can't be read: {error.strerror}")
