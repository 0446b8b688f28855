import threading
from collections.abc import Mapping

from headrace.trainer.checkpoint import TrainState
from headrace.trainer.source import BatchSource, TrainingBatch


class OneRank:
    is_main = True

    def broadcast(self, value: object) -> object:
        return value


class Scripted:
    """A Reader. None is a poll that found nothing; after the last it tells the source to stop."""

    def __init__(self, stop: threading.Event, *found: str | None) -> None:
        self.found = list(found)
        self.stop = stop
        self.began_at: Mapping[str, int] | None = None

    def seek(self, offsets: Mapping[str, int]) -> None:
        self.began_at = offsets

    @property
    def offsets(self) -> Mapping[str, int]:
        return self.began_at or {"batches:0": 0}

    def waiting_for(self) -> str:
        return "the batcher has 5 records to handle"

    def poll(self, timeout_s: float) -> TrainingBatch | None:  # noqa: ARG002
        if not self.found:
            self.stop.set()
            return None
        name = self.found.pop(0)
        return TrainingBatch(name, [], {"batches:0": len(self.found)}, 0.0) if name else None


def test_batches_until_told_to_stop() -> None:
    stop = threading.Event()
    reader = Scripted(stop, "a", None, None, "b")
    source = BatchSource(OneRank(), reader, stop)
    assert source.start(TrainState(run_id="r", offsets={"batches:0": 3})) == {"batches:0": 3}
    assert [batch.batch_id for batch in source] == ["a", "b"]
    assert reader.began_at == {"batches:0": 3}


def test_it_says_what_it_waits_for() -> None:
    """C14: not for hours without a word."""
    stop, said = threading.Event(), list[str]()
    source = BatchSource(
        OneRank(), Scripted(stop, None, None, "a"), stop, tell_every_s=0.0, waiting=said.append
    )
    source.start(TrainState(run_id="r"))
    assert [batch.batch_id for batch in source] == ["a"]
    assert said[0] == "a batch, for 0 s: the batcher has 5 records to handle"


def test_others_take_what_the_main_rank_sends() -> None:
    batch = TrainingBatch("a", [], {}, 0.0)
    sent: list[object] = [{"batches:0": 4}, batch, "nothing yet", batch, None]

    class Other:
        is_main = False

        def broadcast(self, value: object) -> object:
            assert value is None
            return sent.pop(0)

    source = BatchSource(Other(), None, threading.Event())
    assert source.start(TrainState(run_id="r")) == {"batches:0": 4}
    assert list(source) == [batch, batch]
