"""The whole pipeline, top to bottom: who reads which topic, and who writes it.

    clients ──▶ rollouts ──▶ DISPATCHER ──▶ tasks ──▶ runners
                                 │  ▲
                   rollout-states◀┘  └── attempts ◀── runners, dispatcher, assembler
    runners, proxy ──▶ attempts, spans, rewards ──▶ ASSEMBLER ──▶ trajectories
    trajectories ──▶ BATCHER ──▶ batches ──▶ trainers
                        └──────▶ groups ──▶ feeders
    every topic ──▶ SINK ──▶ ClickHouse
    whatever a stage can't process ──▶ dead-letters

Each stage is a process of its own, scales by its partitions, and shares nothing with the others but topics.
A test holds this page against the topic files.
"""

from typing import NamedTuple

from headrace.schemas.topics import topic_specs


class Stage(NamedTuple):
    """One consumer group of the pipeline. Topics are short names, as their files are called."""

    name: str
    summary: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def group(self, prefix: str) -> str:
        """The Kafka consumer group of all its processes."""
        return f"{prefix}-{self.name}"

    def topics(self, prefix: str) -> tuple[str, ...]:
        """Full names of what it reads."""
        return tuple(topic_specs()[name].full_name(prefix) for name in self.reads)


DISPATCHER = Stage(
    "dispatcher",
    "Gives rollouts to runners; retries, deadlines, cancellation.",
    reads=("rollouts", "attempts"),
    writes=("tasks", "rollout-states", "attempts", "dead-letters"),
)
ASSEMBLER = Stage(
    "assembler",
    "Turns the events of attempts into trajectories.",
    reads=("attempts", "spans", "rewards"),
    writes=("trajectories", "attempts", "spans", "rewards", "dead-letters"),
)
BATCHER = Stage(
    "batcher",
    "Makes training batches of groups that are whole, fresh and differ.",
    reads=("trajectories",),
    writes=("batches", "groups", "trajectories", "dead-letters"),
)
SINK = Stage(
    "sink",
    "Writes every topic to ClickHouse.",
    reads=tuple(topic_specs()),
    writes=("dead-letters",),
)

PIPELINE = (DISPATCHER, ASSEMBLER, BATCHER, SINK)
