"""What the topics hold against what SQL shows of it, after a training demo: what is lost, or double."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.demo.tally import Tally
from headrace.schemas.codec import Codec
from headrace.schemas.records import (
    AttemptEvent,
    BatchShard,
    GroupVerdict,
    Record,
    ResourceVersion,
    Reward,
    RolloutCommand,
    Span,
    TrainStep,
    Trajectory,
)
from headrace.schemas.topics import topic_name
from headrace.streams.settings import KafkaSettings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RecordT = TypeVar("RecordT", bound=Record)


@dataclass
class Audit(Tally):
    """`wrong` is also what can't be: a batch that was passed over, two codes that compute differently."""

    attempts: int = 0
    transitions: int = 0
    batches: int = 0
    versions: int = 0


def audit(kafka: KafkaSettings, client: "Client", *, max_gap: float) -> Audit:
    """Read every topic to its end, and ask the views; `max_gap` is between the engine's logprobs and ours."""

    def rows(statement: str) -> list[tuple[Hashable, ...]]:
        return [tuple(row) for row in client.query(statement).result_rows]

    log, done = Log(kafka), Audit()
    trajectories = [each for each in log.read(Trajectory) if each.kind == "trajectory"]
    verdicts = _first_of(trajectories, lambda each: each.attempt_id)
    calls = [(each.attempt_id, step.sequence_id) for each in verdicts for step in each.transitions]
    batches = _first_of(log.read(BatchShard), lambda each: (each.batch_id, each.shard))
    steps, versions = log.read(TrainStep), log.read(ResourceVersion)
    logged: dict[str, tuple[Iterable[Hashable], str]] = {
        "rollouts": (
            ((each.rollout_id,) for each in log.read(RolloutCommand) if each.kind == "enqueue"),
            "SELECT rollout_id FROM rollouts WHERE is_final",
        ),
        "attempts": (
            ((each.attempt_id,) for each in log.read(AttemptEvent)),
            "SELECT attempt_id FROM attempts",
        ),
        "spans": (
            ((each.attempt_id, each.sequence_id) for each in log.read(Span) if each.kind != "closed"),
            "SELECT attempt_id, sequence_id FROM spans",
        ),
        "rewards": (
            ((each.attempt_id, each.reward_id) for each in log.read(Reward)),
            "SELECT attempt_id, reward_id FROM rewards",
        ),
        "trajectories": (((each.attempt_id,) for each in verdicts), "SELECT attempt_id FROM trajectories"),
        "transitions": (calls, "SELECT attempt_id, sequence_id FROM transitions"),
        "groups": (((each.group_id,) for each in log.read(GroupVerdict)), "SELECT group_id FROM groups"),
        "batches": (((each.batch_id,) for each in batches), "SELECT batch_id FROM batches"),
        "steps": (
            ((each.run_id, each.step, each.num_batches) for each in steps),
            "SELECT run_id, step, num_batches FROM train_steps",
        ),
        "versions": (((each.name, each.version) for each in versions), "SELECT name, version FROM resources"),
        "dead letters": ((), "SELECT topic, partition, offset FROM dead_letters"),
    }
    for what, (wanted, statement) in logged.items():
        done.compare(what, wanted, rows(statement))
    check_training(done, batches, steps, max_gap)
    done.attempts, done.transitions = len(verdicts), len(calls)
    done.batches = len({batch_id for step in steps for batch_id in step.batch_ids})
    done.versions = len({each.version for each in versions})
    return done


def check_training(
    done: Audit, batches: Sequence[BatchShard], steps: Sequence[TrainStep], max_gap: float
) -> None:
    """Trained on: each batch once, in the order of the log, none passed over, and no attempt twice."""
    taken = [batch_id for step in steps for batch_id in step.batch_ids]
    # One partition has them all.
    made = list(dict.fromkeys(each.batch_id for each in sorted(batches, key=lambda each: each.last_offset)))
    done.duplicated += len(taken) - len(set(taken))
    if taken != made[: len(taken)]:
        done.differ("the trainer took other batches than were made, or in another order")
    members = [each.attempt_id for shard in batches for each in shard.trajectories]
    done.duplicated += len(members) - len(set(members))
    for gap in (step.metrics.get("engine_gap_max", 0.0) for step in steps):
        if not gap <= max_gap:
            done.differ(f"engine and trainer differ by {gap:.1e} in a logprob, and {max_gap:.0e} is allowed")


def _first_of(records: Iterable[RecordT], key: Callable[[RecordT], Hashable]) -> list[RecordT]:
    """Repeats in the log are byte-identical, and count once."""
    found: dict[Hashable, RecordT] = {}
    for record in records:
        found.setdefault(key(record), record)
    return list(found.values())


class Log:
    """The topics, read to their ends."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._codec = Codec()

    def read(self, kind: type[RecordT]) -> list[RecordT]:
        from headrace.streams.client.tail import Tail  # noqa: PLC0415  brings Kafka's client

        with Tail(self._kafka, name="audit") as tail:
            places = tail.places(topic_name(kind, self._kafka.topic_prefix))
            records = list(tail.read(tail.beginnings(places), tail.ends(places)))
        return [self._codec.decode(record.value, kind) for record in records if record.value is not None]
