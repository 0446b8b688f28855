"""The sink as a program that notes each batch, and dies or fails at a chosen point.

Arguments: the file to note in, the point, and which batch it is met at. Points: `before` and `after` the
insert, kill -9; `unacknowledged`: the insert is done and three times nothing is heard of it.
"""

import os
import signal
import sys
from pathlib import Path
from unittest import mock

from headrace.schemas.records import DeadLetter
from headrace.streams.clickhouse import ClickHouseUnavailableError
from headrace.streams.processors.sink import run
from headrace.streams.processors.sink.settings import SinkSettings
from headrace.streams.processors.sink.writer import Batch, ClickHouseWriter
from headrace.streams.settings import ClickHouseSettings, KafkaSettings

JOURNAL, POINT, NUMBER = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])


class FailingWriter(ClickHouseWriter):
    num_batches = 0

    def write(self, batch: Batch) -> list[DeadLetter]:
        FailingWriter.num_batches += 1
        with JOURNAL.open("a") as journal:
            journal.write(f"{batch.token} {len(batch.records)}\n")
        if POINT == "before" and FailingWriter.num_batches == NUMBER:
            os.kill(os.getpid(), signal.SIGKILL)
        letters = super().write(batch)
        if POINT == "after" and FailingWriter.num_batches == NUMBER:
            os.kill(os.getpid(), signal.SIGKILL)
        if POINT == "unacknowledged" and NUMBER <= FailingWriter.num_batches < NUMBER + 3:
            raise ClickHouseUnavailableError("the test asked for it")
        return letters


if __name__ == "__main__":
    with mock.patch.object(run, "ClickHouseWriter", FailingWriter):
        run.run(KafkaSettings(), ClickHouseSettings(), SinkSettings())
