"""RolloutCommand and AttemptTask: what shall run, and how."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat

from headrace.schemas.records.base import Count, Identifier, Int32, Part, Record, Timestamp, UuidV7

Mode = Literal["train", "val", "test"]
AttemptOutcome = Literal["succeeded", "failed", "timeout", "unresponsive", "cancelled"]
Seconds = Annotated[FiniteFloat, Field(ge=0)]


class RolloutConfig(Part):
    """How a rollout may run, and what of it may train."""

    timeout_s: Seconds = 600.0
    heartbeat_timeout_s: Seconds = 60.0
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    retry_on: tuple[AttemptOutcome, ...] = ()
    reward_grace_s: Seconds = 30.0
    """How long the assembler waits for an outcome reward after the end."""
    accept: tuple[AttemptOutcome, ...] = ("succeeded",)
    """Outcomes that may train."""
    credit_rule: Identifier = "outcome@1"
    agents: tuple[str, ...] = ()
    """Names of the agents whose calls become transitions; empty: all."""


class RolloutCommand(Record):
    """Asks the dispatcher to run a task, or to stop."""

    key_field: ClassVar[str] = "rollout_id"

    kind: Literal["enqueue", "cancel"]
    rollout_id: UuidV7
    group_id: Identifier
    group_size: Annotated[Int32, Field(ge=1)] = 1
    task_id: str = ""
    mode: Mode = "train"
    task: str = "null"
    """JSON."""
    config: RolloutConfig = RolloutConfig()
    resources: dict[str, Count] = {}
    """Pinned versions by resource name."""
    metadata: dict[str, str] = {}
    time: Timestamp


class AttemptTask(Record):
    """What a runner must run."""

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
    attempt_id: UuidV7
    attempt: Annotated[Int32, Field(ge=1)]
    group_id: Identifier
    group_size: Annotated[Int32, Field(ge=1)] = 1
    task_id: str = ""
    mode: Mode = "train"
    task: str
    """JSON."""
    config: RolloutConfig = RolloutConfig()
    resources: dict[str, Count] = {}
    metadata: dict[str, str] = {}
    time: Timestamp
