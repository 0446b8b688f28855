from pathlib import Path

import pytest

from headrace.trainer.folders import keep_last, numbered, remove_unfinished, whole_folder


def test_a_folder_is_there_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "step-1"
    with whole_folder(target) as draft:
        (draft / "a").mkdir()
        (draft / "a" / "file").write_text("x")
        assert not target.exists()
    assert (target / "a" / "file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [target]


def test_a_fault_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk full"), whole_folder(tmp_path / "step-1") as draft:  # noqa: PT012
        (draft / "file").write_text("half")
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    with pytest.raises(FileExistsError), whole_folder(tmp_path / "step-1"):
        pass


def test_what_a_killed_process_left_goes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "step-1") as draft:  # noqa: PT012
        draft.rename(tmp_path / ".unfinished-step-1-abc")
        raise RuntimeError
    assert remove_unfinished(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_last_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 10, 9):
        (tmp_path / f"step-{number:08d}").mkdir()
    (tmp_path / "step-notes").mkdir()
    assert keep_last(tmp_path, "step-", 3) == [1]
    assert list(numbered(tmp_path, "step-")) == [2, 9, 10]
    assert keep_last(tmp_path, "step-", 5) == []
