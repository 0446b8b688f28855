"""What a checkpoint holds, and that it is whole or not there."""

from pathlib import Path

import pytest

from headrace.schemas.errors import FatalError
from headrace.trainer.checkpoint import Checkpoints, TrainState


class OneNumber:
    """A policy whose weights are one number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.fails = False

    def save(self, folder: Path) -> None:
        (folder / "number").write_text(str(self.number))
        if self.fails:
            raise OSError("disk full")

    def load(self, folder: Path) -> None:
        self.number = int((folder / "number").read_text())


class Alone:
    is_main = True

    def barrier(self) -> None:
        return


def state(num_batches: int, run_id: str = "run") -> TrainState:
    return TrainState(run_id=run_id, num_batches=num_batches, step=2 * num_batches, offsets={"batches:0": 7})


def test_weights_and_offsets_come_back_together(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Alone(), keep=2)
    for number in range(1, 5):
        checkpoints.save(OneNumber(number), state(number))
    policy = OneNumber()
    assert checkpoints.load(policy, "run") == state(4)
    assert policy.number == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_the_newest_can_be_told_of_a_later_publication(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Alone(), keep=2)
    checkpoints.save(OneNumber(1), state(1))
    checkpoints.save(OneNumber(2), state(2))
    amended = state(2).model_copy(update={"policy_version": 9})
    checkpoints.amend(amended)
    policy = OneNumber()
    assert checkpoints.load(policy, "run") == amended
    assert policy.number == 2


def test_nothing_to_load(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new", Alone(), keep=2).load(OneNumber(), "run") is None


def test_one_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Alone(), keep=2)
    checkpoints.save(OneNumber(1), state(1))
    broken = OneNumber(2)
    broken.fails = True
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(broken, state(2))
    policy = OneNumber()
    assert checkpoints.load(policy, "run") == state(1)
    assert policy.number == 1
    assert [path.name for path in tmp_path.iterdir()] == ["batch-00000001"]


def test_another_run_s_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Alone(), keep=2)
    checkpoints.save(OneNumber(1), state(1, "first"))
    with pytest.raises(FatalError, match="of run 'first', and this is 'second'"):
        checkpoints.load(OneNumber(), "second")


def test_one_that_can_t_be_read_stops_the_run(tmp_path: Path) -> None:
    """Going on from an older one would train batches again."""
    checkpoints = Checkpoints(tmp_path, Alone(), keep=2)
    checkpoints.save(OneNumber(1), state(1))
    checkpoints.save(OneNumber(2), state(2))
    (tmp_path / "batch-00000002" / "state.json").write_text("{")
    with pytest.raises(FatalError, match="can't be read"):
        checkpoints.load(OneNumber(), "run")
