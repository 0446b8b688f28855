import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.streams.client.manifest import BadResourceError, ResourceChangedError, manifest_of

FILES = {"config.json": b"{}", "shards/0.bin": b"\0" * 3_000_000, "shards/1.bin": b"", "ünïcode.txt": b"x"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    for name, content in FILES.items():
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return made


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_every_file_is_hashed_whole(folder: Path) -> None:
    read: list[int] = []
    assert manifest_of(folder, on_bytes=read.append) == {name: sha256(FILES[name]) for name in sorted(FILES)}
    assert sum(read) == sum(map(len, FILES.values()))


def test_a_file_is_named_by_its_name(folder: Path) -> None:
    assert manifest_of(folder / "shards" / "0.bin") == {"0.bin": sha256(FILES["shards/0.bin"])}


def test_links_are_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.bin").write_bytes(b"far")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    (folder / "file").symlink_to(outside / "far.bin")
    found = manifest_of(folder)
    assert found["linked/far.bin"] == found["file"] == sha256(b"far")


def grow(folder: Path) -> None:
    with (folder / "config.json").open("ab") as file:
        file.write(b" ")


def touch(folder: Path) -> None:
    os.utime(folder / "shards" / "1.bin", ns=(1, 1))


def add(folder: Path) -> None:
    (folder / "new").touch()


def remove(folder: Path) -> None:
    (folder / "shards" / "1.bin").unlink()


@pytest.mark.parametrize("change", [grow, touch, add, remove], ids=lambda change: change.__name__)
def test_what_changes_while_it_is_read_is_no_version(folder: Path, change: Callable[[Path], None]) -> None:
    """G9: somebody is still writing."""
    changed: list[int] = []

    def on_bytes(_: int) -> None:
        if not changed:
            changed.append(1)
            change(folder)

    with pytest.raises((ResourceChangedError, BadResourceError)):
        manifest_of(folder, on_bytes=on_bytes)


def broken_link(folder: Path) -> Path:
    (folder / "broken").symlink_to("nowhere")
    return folder


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder


def empty(folder: Path) -> Path:
    made = folder.parent / "empty"
    made.mkdir()
    return made


def absent(folder: Path) -> Path:
    return folder / "absent"


@pytest.mark.parametrize(
    ("bad", "words"),
    [(broken_link, "broken"), (a_pipe, "no ordinary file"), (empty, "no files"), (absent, "absent")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_can_t_be_read_whole_is_refused(folder: Path, bad: Callable[[Path], Path], words: str) -> None:
    with pytest.raises(BadResourceError, match=words):
        manifest_of(bad(folder))
