"""A processor for the host's tests, and the program that runs it.

Each id comes once in `a` and once in `b`. When both are there, one output tells both offsets; the state keeps
the half that came first, and a mark for each finished id. Whatever is lost of the state or of the records is
a missing output, and whatever is mixed up is an output that says something else.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from headrace.streams.host import HostSettings, run
from headrace.streams.processor import LogRecord, Output, State
from headrace.streams.settings import KafkaSettings


class Pairing:
    name = "pairing"

    def __init__(self, prefix: str) -> None:
        self.topics = (f"{prefix}.a", f"{prefix}.b")
        self._out = f"{prefix}.out"
        self._ticks = f"{prefix}.ticks"
        self._waiting: dict[int, set[bytes]] = {}
        self.counts: Counter[str] = Counter()

    def handle(self, partition: int, records: Sequence[LogRecord], state: State) -> list[Output]:
        waiting = self._waiting[partition]
        self.counts["seen"] += len(records)
        outputs = [output for record in records for output in self._one(record, state, waiting)]
        if {key for key, _ in state.scan(b"waiting/")} != waiting:
            raise AssertionError(f"memory and state differ in partition {partition}")
        return outputs

    def tick(self, now_ms: int) -> list[Output]:
        partitions = ",".join(str(partition) for partition in sorted(self._waiting))
        return [Output(self._ticks, b"tick", partitions.encode(), (("now", str(now_ms).encode()),))]

    def assigned(self, partition: int, state: State) -> None:
        self._waiting[partition] = {key for key, _ in state.scan(b"waiting/")}

    def revoked(self, partition: int) -> None:
        del self._waiting[partition]

    def _one(self, record: LogRecord, state: State, waiting: set[bytes]) -> list[Output]:
        assert record.key is not None
        assert record.value is not None
        command = record.value.split(b"/")[0]
        if command == b"ignore":
            return []
        if command == b"raise":
            raise ValueError("the test asked for it")
        if command == b"freeze":
            time.sleep(60)
        if command == b"huge":
            return [Output(self._out, record.key, random.Random(1).randbytes(3 << 20))]
        return self._pair(record, b"waiting/%s/%s" % (record.key, record.value), state, waiting)

    def _pair(self, record: LogRecord, key: bytes, state: State, waiting: set[bytes]) -> list[Output]:
        assert record.key is not None
        done = key.replace(b"waiting/", b"done/", 1)
        mine = b"%s@%d" % (record.topic[-1].encode(), record.offset)
        other = state.get(key)
        if state.get(done) is not None or other == mine:
            return []
        if other is None:
            state.put(key, mine)
            waiting.add(key)
            return []
        state.delete(key)
        state.put(done, b"")
        waiting.discard(key)
        pair = b"+".join(sorted((mine, other)))
        return [Output(self._out, record.key, b"%s=%s" % (record.value, pair), record.headers)]


def main() -> int:
    kafka = KafkaSettings()
    return run(Pairing(kafka.topic_prefix), kafka, HostSettings())


if __name__ == "__main__":
    sys.exit(main())
