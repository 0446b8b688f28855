"""AttemptEvent: a step in an attempt's life. The first terminal one in the log counts (G7)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from headrace.schemas.records.base import Count, Identifier, Int32, Part, Record, Timestamp, UuidV7
from headrace.schemas.records.rollout import AttemptOutcome, Mode, Seconds


class AttemptOrigin(Part):
    """What the assembler needs of the rollout, so that one log tells the whole story of an attempt."""

    group_id: Identifier
    group_size: Annotated[Int32, Field(ge=1)] = 1
    task_id: str = ""
    mode: Mode = "train"
    credit_rule: Identifier = "outcome@1"
    accept: tuple[AttemptOutcome, ...] = ("succeeded",)
    reward_grace_s: Seconds = 30.0
    agents: tuple[str, ...] = ()
    dispatched: bool = False
    """The dispatcher keeps its deadlines."""


class AttemptEvent(Record):
    """`started` carries the origin, `ended` the outcome and how many sequence ids were handed out."""

    key_field: ClassVar[str] = "rollout_id"

    rollout_id: UuidV7
    attempt_id: UuidV7
    attempt: Annotated[Int32, Field(ge=1)] = 1
    kind: Literal["started", "heartbeat", "ended"]
    status: Literal["preparing", "running"] | AttemptOutcome
    runner_id: str = ""
    last_sequence_id: Count | None = None
    """On ended: the highest id handed out, 0 for none; None: unknown."""
    error: str | None = None
    origin: AttemptOrigin | None = None
    time: Timestamp

    @model_validator(mode="after")
    def _is_coherent(self) -> Self:
        if (self.kind == "ended") == (self.status in {"preparing", "running"}):
            raise ValueError(f"an event of kind {self.kind!r} can't have status {self.status!r}")
        if (self.kind == "started") != (self.origin is not None):
            raise ValueError("origin belongs on a started event, and on no other")
        return self
