"""What the topics hold against what SQL shows of it, after a training demo: lost, doubled, trained twice."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace.schemas.codec import Codec
from headrace.schemas.records import (
    BatchShard,
    Record,
    ResourceVersion,
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
class Audit:
    """Counts of records; `wrong` is what contradicts itself."""

    attempts: int = 0
    transitions: int = 0
    batches: int = 0
    versions: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    words: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)

    def compare(self, what: str, logged: Iterable[Hashable], shown: Iterable[Hashable]) -> None:
        """The same keys, each once in what is shown."""
        wanted, found = set(logged), Counter(shown)
        missing, foreign = wanted - found.keys(), found.keys() - wanted
        twice = sum(number - 1 for number in found.values())
        self.lost += len(missing)
        self.duplicated += twice
        self.wrong += len(foreign)
        for number, word in ((len(missing), "lost"), (len(foreign), "not in the log"), (twice, "too many")):
            if number:
                self.words.append(f"{number} {what} {word}")


def audit(kafka: KafkaSettings, client: "Client") -> Audit:
    """Read every topic to its end, and ask the views."""

    def rows(statement: str) -> list[tuple[Hashable, ...]]:
        return [tuple(row) for row in client.query(statement).result_rows]

    log, done = Log(kafka), Audit()
    trajectories = [each for each in log.read(Trajectory) if each.kind == "trajectory"]
    verdicts = _first_of(trajectories, lambda each: each.attempt_id)
    calls = [(each.attempt_id, step.sequence_id) for each in verdicts for step in each.transitions]
    batches = log.read(BatchShard)
    steps = log.read(TrainStep)
    trained = [batch_id for step in steps for batch_id in step.batch_ids]
    versions = log.read(ResourceVersion)
    commands = [each for each in log.read(RolloutCommand) if each.kind == "enqueue"]
    done.compare(
        "rollouts",
        ((each.rollout_id,) for each in commands),
        rows("SELECT rollout_id FROM rollouts WHERE is_final"),
    )
    spans = [(each.attempt_id, each.sequence_id) for each in log.read(Span) if each.kind != "closed"]
    done.compare("spans", spans, rows("SELECT attempt_id, sequence_id FROM spans"))
    done.compare(
        "trajectories", ((each.attempt_id,) for each in verdicts), rows("SELECT attempt_id FROM trajectories")
    )
    done.compare("transitions", calls, rows("SELECT attempt_id, sequence_id FROM transitions"))
    done.compare("batches", ((each.batch_id,) for each in batches), rows("SELECT batch_id FROM batches"))
    done.compare(
        "versions",
        ((each.name, each.version) for each in versions),
        rows("SELECT name, version FROM resources"),
    )
    done.duplicated += sum(number - 1 for number in Counter(trained).values())
    done.wrong += len(set(trained) - {each.batch_id for each in batches})
    members = [each.attempt_id for shard in _first_of(batches, _shard) for each in shard.trajectories]
    done.duplicated += len(members) - len(set(members))
    done.attempts, done.transitions = len(verdicts), len(calls)
    done.batches, done.versions = len(set(trained)), len({each.version for each in versions})
    return done


def _shard(record: BatchShard) -> Hashable:
    return record.batch_id, record.shard


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
