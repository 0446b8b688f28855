"""AttemptEvent: a step in an attempt's life. The first terminal one in the log counts (G7)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from headrace.schemas.records.base import Count, Identifier, Int32, Part, Record, Timestamp, UuidV7
from headrace.schemas.records.rollout import AttemptOutcome, AttemptTask, Mode, RolloutCommand, Seconds


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
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    retry_on: tuple[AttemptOutcome, ...] = ()
    """Which ends are tried again, up to max_attempts: what tells a rollout's last attempt from others."""
    resources: dict[str, Count] = {}
    """Versions that the agent was given, by name: which prompt a call came from."""

    @classmethod
    def of(cls, rollout: RolloutCommand | AttemptTask) -> Self:
        """The origin of an attempt that the dispatcher asks for."""
        config = rollout.config
        return cls(
            group_id=rollout.group_id,
            group_size=rollout.group_size,
            task_id=rollout.task_id,
            mode=rollout.mode,
            credit_rule=config.credit_rule,
            accept=config.accept,
            reward_grace_s=config.reward_grace_s,
            agents=config.agents,
            dispatched=True,
            max_attempts=config.max_attempts,
            retry_on=config.retry_on,
        )


class AttemptEvent(Record):
    """`started` carries the origin, `ended` the outcome and how many sequence ids were handed out.

    An end by the dispatcher carries the origin as well: the attempt may never have started.
    """

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
        if self.kind == "started" and self.origin is None:
            raise ValueError("a started event needs an origin")
        if self.kind == "heartbeat" and self.origin is not None:
            raise ValueError("a heartbeat has no origin")
        return self
