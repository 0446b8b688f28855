"""RolloutCommand, AttemptTask, RolloutState: what shall run, how, and what became of it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, FiniteFloat

from headrace.schemas.records.base import Count, Identifier, Int32, Part, Record, Timestamp, UuidV7

Mode = Literal["train", "val", "test"]
AttemptOutcome = Literal["succeeded", "failed", "timeout", "unresponsive", "cancelled"]
RolloutStateName = Literal["queuing", "preparing", "running", "requeuing", "succeeded", "failed", "cancelled"]
Seconds = Annotated[FiniteFloat, Field(ge=0)]


class RolloutConfig(Part):
    """How a rollout may run, and what of it may train."""

    timeout_s: Seconds = 600.0
    heartbeat_timeout_s: Seconds = 60.0
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    retry_on: tuple[AttemptOutcome, ...] = ("unresponsive",)
    """Ends that are tried again, up to max_attempts: by default that of a runner which died."""
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
    """What a runner must run. Whoever runs it gives the attempt its id, so that two never share one."""

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
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


class RolloutState(Record):
    """A step in a rollout's life, as the dispatcher decided it. One that is final is the last."""

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
    group_id: Identifier
    group_size: Annotated[Int32, Field(ge=1)] = 1
    task_id: str = ""
    mode: Mode = "train"
    state: RolloutStateName
    is_final: bool
    attempt: Annotated[Int32, Field(ge=0)] = 0
    """The attempt that it speaks of; 0: none yet."""
    attempt_id: UuidV7 | None = None
    attempt_status: AttemptOutcome | None = None
    """How that attempt ended."""
    error: str | None = None
    revision: Annotated[Int32, Field(ge=1)]
    metadata: dict[str, str] = {}
    time: Timestamp
