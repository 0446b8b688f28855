from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.fake_admin import published, write_weights

from headrace.proxy.weight_files import BadWeightsError, verify

SHARD = "shards/1.safetensors"


def test_files_that_are_what_was_published(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "a folder with ü")
    files = verify(published(folder, 1))
    assert files.folder == folder
    assert files.is_unchanged()
    (folder / SHARD).write_text("others")
    assert not files.is_unchanged()


def test_a_folder_that_is_gone_has_changed(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "weights")
    files = verify(published(folder, 1))
    folder.rename(tmp_path / "elsewhere")
    assert not files.is_unchanged()


def half_write(folder: Path) -> None:
    (folder / SHARD).write_text("wei")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        pytest.param(half_write, r"not what was published: shards/1\.safetensors", id="half-written"),
        pytest.param(lambda f: (f / SHARD).unlink(), r"missing: shards/1\.safetensors", id="missing"),
        pytest.param(lambda f: (f / "2.part").write_text(""), r"not published: 2\.part", id="extra"),
        pytest.param(lambda f: f.rename(f.with_name("gone")), "there is no folder", id="gone"),
    ],
)
def test_g9_files_that_are_not_what_was_published(
    tmp_path: Path, harm: Callable[[Path], object], message: str
) -> None:
    folder = write_weights(tmp_path / "weights")
    version = published(folder, 1)
    harm(folder)
    with pytest.raises(BadWeightsError, match=message):
        verify(version)


def test_many_files_are_not_all_named(tmp_path: Path) -> None:
    folder = write_weights(tmp_path / "weights")
    version = published(folder, 1)
    for number in range(6):
        (folder / f"x{number}").write_text("")
    with pytest.raises(BadWeightsError, match=r"x0, x1, x2 and 3 more$"):
        verify(version)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "prompt"}, "it is of kind prompt"),
        ({"manifest": {}}, "without a manifest"),
        ({"uri": "s3://bucket/weights"}, "only file:// is loaded, and it lies at s3://bucket"),
        ({"uri": "file://elsewhere/weights"}, "it lies at file://elsewhere"),
        ({"uri": ""}, "only file:// is loaded"),
    ],
    ids=["kind", "no manifest", "scheme", "host", "no uri"],
)
def test_versions_that_can_not_be_loaded(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    version = published(write_weights(tmp_path / "weights"), 1).model_copy(update=change)
    with pytest.raises(BadWeightsError, match=message):
        verify(version)
