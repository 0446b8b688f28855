"""A batcher in a host without a broker, and trajectories to feed it."""

from collections.abc import Sequence
from typing import Any

from tests.builders import CODEC, EPOCH_MS, PREFIX, TIME, an_id

from headrace.schemas.records import BatchShard, DeadLetter, GroupVerdict, Record, Trajectory, Transition
from headrace.schemas.topics import topic_name
from headrace.streams.processor import LogRecord, Output
from headrace.streams.processors.batcher.batcher import BATCH_WAIT, Batcher, make_mark
from headrace.streams.processors.batcher.group import DEADLINE, Group
from headrace.streams.processors.batcher.settings import BatcherSettings
from headrace.streams.state import MemoryState, Overlay

TRAJECTORIES = topic_name(Trajectory, PREFIX)


def transition(step: int = 0, **fields: Any) -> Transition:
    defaults: dict[str, Any] = {
        "step": step,
        "sequence_id": step + 1,
        "prefix_len": 0,
        "prompt_suffix_token_ids": (1, 2, 3),
        "response_token_ids": (4, 5),
        "response_logprobs": (-0.5, -0.25),
        "reward": 1.0,
        "is_last": True,
        "resource_name": "policy",
        "resource_version": 1,
        "trainable": True,
    }
    return Transition(**(defaults | fields))


def trajectory(
    group: str = "g", rollout: object = 0, outcome: float | None = 1.0, **fields: Any
) -> Trajectory:
    """An accepted one of a group of two, by default."""
    attempt = fields.get("attempt", 1)
    accepted = fields.get("accepted", True)
    defaults: dict[str, Any] = {
        "rollout_id": an_id("rollout", group, rollout),
        "attempt_id": an_id("attempt", group, rollout, attempt),
        "group_id": group,
        "group_size": 2,
        "task_id": f"task of {group}",
        "status": "succeeded" if accepted else "failed",
        "accepted": accepted,
        "reason": None if accepted else "attempt_failed",
        "outcome": outcome,
        "credit_rule": "outcome@1",
        "transitions": (transition(),),
        "ended_at": TIME,
    }
    return Trajectory(**(defaults | fields))


def pair(group: str, *outcomes: float, **fields: Any) -> list[Trajectory]:
    """A whole group with these outcomes."""
    found = outcomes or (0.0, 1.0)
    more = {"group_size": len(found)} | fields
    return [trajectory(group, number, outcome, **more) for number, outcome in enumerate(found)]


def deadline(group: str) -> Trajectory:
    return make_mark(Group(group, "", "train", 2, 0, 0), DEADLINE, EPOCH_MS)


def batch_wait(group: str) -> Trajectory:
    return make_mark(Group(group, "", "train", 2, 0, 0), BATCH_WAIT, EPOCH_MS)


class Host:
    """Keeps a log and hands it on as the Faust host does; `restart` keeps only the state."""

    def __init__(self, **options: Any) -> None:
        self.settings = BatcherSettings(**({"batch_groups": 2} | options))
        self.state = MemoryState()
        self.log: list[LogRecord] = []
        self.outputs: list[Output] = []
        self.restart()

    def restart(self) -> None:
        self.batcher = Batcher(PREFIX, self.settings)
        self.batcher.assigned(0, self.state)

    def append(self, *trajectories: Trajectory, time_ms: int = EPOCH_MS) -> list[LogRecord]:
        """Into the log alone."""
        added = [
            LogRecord(TRAJECTORIES, 0, len(self.log) + i, time_ms, each.key, CODEC.encode(each, TRAJECTORIES))
            for i, each in enumerate(trajectories)
        ]
        self.log += added
        return added

    def feed(self, *trajectories: Trajectory, time_ms: int = EPOCH_MS) -> None:
        self.handle(self.append(*trajectories, time_ms=time_ms))

    def handle(self, records: Sequence[LogRecord], *, num_changes: int | None = None) -> None:
        """With `num_changes` the process dies after so many of its changes are in the changelog."""
        overlay = Overlay(self.state)
        self.outputs += self.batcher.handle(0, records, overlay)
        for key, value in overlay.changes()[:num_changes]:
            if value is None:
                self.state.delete(key)
            else:
                self.state.put(key, value)
        if num_changes is not None:
            self.restart()

    def emitted(self, record: type[Record]) -> list[Any]:
        topic = topic_name(record, PREFIX)
        return [CODEC.decode(output.value, record) for output in self.outputs if output.topic == topic]

    @property
    def shards(self) -> list[BatchShard]:
        return self.emitted(BatchShard)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        return self.emitted(DeadLetter)

    @property
    def verdicts(self) -> dict[str, GroupVerdict]:
        """By group; each has one."""
        found = self.emitted(GroupVerdict)
        assert len({verdict.group_id for verdict in found}) == len(found)
        return {verdict.group_id: verdict for verdict in found}

    @property
    def batches(self) -> list[list[str]]:
        """The groups of each batch, in the order of batches."""
        found: dict[str, set[str]] = {}
        for shard in self.shards:
            found.setdefault(shard.batch_id, set()).update(t.group_id for t in shard.trajectories)
        return [sorted(groups) for groups in found.values()]

    def reasons(self) -> dict[str, str | None]:
        return {group: verdict.reason for group, verdict in self.verdicts.items()}
