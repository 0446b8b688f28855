"""Every record that a topic carries, and its parts."""

from headrace.schemas.records.attempt import AttemptEvent, AttemptOrigin
from headrace.schemas.records.base import Record, now
from headrace.schemas.records.batch import BatchShard
from headrace.schemas.records.dead_letter import DeadLetter, RecordHeader
from headrace.schemas.records.group import GroupVerdict
from headrace.schemas.records.resource import ResourceVersion
from headrace.schemas.records.reward import OUTCOME, Reward
from headrace.schemas.records.rollout import AttemptTask, RolloutCommand, RolloutConfig, RolloutState
from headrace.schemas.records.span import Generation, Span, SpanEvent, SpanLink
from headrace.schemas.records.train_step import TrainStep
from headrace.schemas.records.trajectory import GivenReward, Trajectory, Transition

RECORDS: dict[str, type[Record]] = {
    record.__name__: record
    for record in (
        AttemptEvent,
        AttemptTask,
        BatchShard,
        DeadLetter,
        GroupVerdict,
        ResourceVersion,
        Reward,
        RolloutCommand,
        RolloutState,
        Span,
        TrainStep,
        Trajectory,
    )
}
"""By name, as topic files and schemas spell it."""

__all__ = [
    "OUTCOME",
    "RECORDS",
    "AttemptEvent",
    "AttemptOrigin",
    "AttemptTask",
    "BatchShard",
    "DeadLetter",
    "Generation",
    "GivenReward",
    "GroupVerdict",
    "Record",
    "RecordHeader",
    "ResourceVersion",
    "Reward",
    "RolloutCommand",
    "RolloutConfig",
    "RolloutState",
    "Span",
    "SpanEvent",
    "SpanLink",
    "TrainStep",
    "Trajectory",
    "Transition",
    "now",
]
