"""An assembler without Kafka."""

from collections.abc import Sequence
from typing import Any

from tests.builders import CODEC, PREFIX, logged

from headrace.schemas.records import DeadLetter, Record, Trajectory
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord, Output
from headrace.streams.processors.assembler import Assembler, AssemblerSettings
from headrace.streams.state import MemoryState

TRAJECTORIES = topic_name(Trajectory, PREFIX)
DEAD_LETTERS = topic_name(DeadLetter, PREFIX)


class Host:
    """Hands batches to an assembler as the Faust host does; `restart` keeps only the state."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.state = MemoryState()
        self.outputs: list[Output] = []
        self.restart()

    def restart(self) -> None:
        self.assembler = Assembler(PREFIX, AssemblerSettings(**self.options))
        self.assembler.assigned(0, self.state)

    def feed(self, records: Sequence[LogRecord]) -> None:
        self.outputs += self.assembler.handle(0, records, self.state)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [CODEC.decode(out.value, Trajectory) for out in self.outputs if out.topic == TRAJECTORIES]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        return [CODEC.decode(out.value, DeadLetter) for out in self.outputs if out.topic == DEAD_LETTERS]


def assemble(records: list[Record]) -> Trajectory:
    host = Host()
    host.feed(logged(records))
    (trajectory,) = host.trajectories
    return trajectory
