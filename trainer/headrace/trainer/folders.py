"""Folders that are whole or not there: written beside their place, synced, and renamed into it (G9)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = ".unfinished-"


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write into; it becomes `target` if nothing is raised, and is removed if something is.

    FileExistsError if the target is there already.
    """
    if target.exists():
        raise FileExistsError(f"{target} is there already")
    with draft_folder(target.parent, target.name) as draft:
        yield draft
        finish(draft, target)


@contextmanager
def draft_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder in `parent` to write into and to `finish`; it is gone in the end if it was not."""
    parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{name}-", dir=parent))
    draft.chmod(0o755)
    try:
        yield draft
    finally:
        if draft.exists():
            shutil.rmtree(draft, ignore_errors=True)


def finish(draft: Path, target: Path) -> None:
    """What was written to the draft is on the disk, and the target is it."""
    for path in (*draft.rglob("*"), draft):
        _sync(path)
    draft.rename(target)
    _sync(target.parent)


def replace_file(path: Path, content: str) -> None:
    """The file has the old content or the new one, whenever we are killed."""
    draft = path.with_name(f"{_UNFINISHED}{path.name}")
    draft.write_text(content)
    _sync(draft)
    draft.rename(path)
    _sync(path.parent)


def remove_unfinished(parent: Path) -> int:
    """Remove what a killed process left; how many there were. Nobody else may be writing there."""
    left = [path for path in parent.glob(f"{_UNFINISHED}*") if path.is_dir()]
    for path in left:
        shutil.rmtree(path)
    return len(left)


def numbered(parent: Path, prefix: str) -> dict[int, Path]:
    """The folders called prefix and a number, by number, lowest first."""
    found = {
        int(path.name.removeprefix(prefix)): path
        for path in parent.glob(f"{prefix}*")
        if path.is_dir() and path.name.removeprefix(prefix).isdecimal()
    }
    return dict(sorted(found.items()))


def keep_last(parent: Path, prefix: str, number: int) -> list[int]:
    """Remove the older ones; the numbers that went."""
    folders = numbered(parent, prefix)
    old = list(folders)[: max(len(folders) - number, 0)]
    for each in old:
        shutil.rmtree(folders[each])
    return old


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
