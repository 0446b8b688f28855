"""The events that tell the story of an attempt that ran elsewhere: started and ended, at once."""

from dataclasses import dataclass
from datetime import datetime

from headrace.schemas.records import AttemptEvent, AttemptOrigin
from headrace.schemas.records.rollout import Mode

RUNNER_ID = "ingest"


@dataclass(frozen=True, kw_only=True)
class ImportedAttempt:
    """An attempt whose every sequence id has been handed out."""

    rollout_id: str
    attempt_id: str
    group_id: str | None = None
    task_id: str = ""
    mode: Mode
    started: datetime
    ended: datetime
    last_sequence_id: int
    error: str | None = None
    """Set: the attempt failed."""

    def events(self) -> tuple[AttemptEvent, AttemptEvent]:
        """The grace is 0: rewards that were recorded have sequence ids, and no other will come."""
        origin = AttemptOrigin(
            group_id=self.group_id or self.rollout_id,
            task_id=self.task_id,
            mode=self.mode,
            accept=("succeeded",),
            reward_grace_s=0.0,
        )
        started = AttemptEvent(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            kind="started",
            status="running",
            runner_id=RUNNER_ID,
            origin=origin,
            time=self.started,
        )
        ended = AttemptEvent(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            kind="ended",
            status="succeeded" if self.error is None else "failed",
            runner_id=RUNNER_ID,
            last_sequence_id=self.last_sequence_id,
            error=self.error,
            time=self.ended,
        )
        return started, ended
