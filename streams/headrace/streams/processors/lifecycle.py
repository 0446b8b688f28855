"""The lives of rollouts and attempts: which event leads from which state to which; all else is ignored.

| rollout | | |
|---|---|---|
| queuing, requeuing | an attempt starts | preparing or running |
| preparing | it says that it runs | running |
| preparing, running, queuing, requeuing | it ends well / is cancelled | succeeded / cancelled |
| preparing, running | it ends badly, and may be tried again | requeuing |
| preparing, running | it ends badly, and may not | failed |

succeeded, failed and cancelled are final (G7): nothing leads out of them.
"""

from typing import Literal

from headrace.schemas.records import AttemptEvent, AttemptOrigin, RolloutConfig
from headrace.schemas.records.rollout import AttemptOutcome, RolloutStateName

DISPATCHER = "dispatcher"
"""The runner_id of events that the dispatcher writes."""

AttemptState = Literal["new", "preparing", "running"] | AttemptOutcome
AttemptStep = Literal["start_preparing", "start_running", "run"] | AttemptOutcome
"""What can happen to an attempt."""

RolloutStep = Literal["start_preparing", "start_running", "run", "succeed", "retry", "fail", "cancel"]
"""What can happen to a rollout."""

ROLLOUT: dict[tuple[RolloutStateName, RolloutStep], RolloutStateName] = {
    ("queuing", "start_preparing"): "preparing",
    ("queuing", "start_running"): "running",
    ("queuing", "cancel"): "cancelled",
    ("preparing", "run"): "running",
    ("preparing", "succeed"): "succeeded",
    ("preparing", "retry"): "requeuing",
    ("preparing", "fail"): "failed",
    ("preparing", "cancel"): "cancelled",
    ("running", "succeed"): "succeeded",
    ("running", "retry"): "requeuing",
    ("running", "fail"): "failed",
    ("running", "cancel"): "cancelled",
    ("requeuing", "start_preparing"): "preparing",
    ("requeuing", "start_running"): "running",
    ("requeuing", "cancel"): "cancelled",
}

_ENDS: tuple[AttemptOutcome, ...] = ("succeeded", "failed", "timeout", "unresponsive", "cancelled")

ATTEMPT: dict[tuple[AttemptState, AttemptStep], AttemptState] = {
    ("new", "start_preparing"): "preparing",
    ("new", "start_running"): "running",
    ("new", "cancelled"): "cancelled",
    ("preparing", "run"): "running",
    **{("preparing", end): end for end in _ENDS},
    **{("running", end): end for end in _ENDS},
}

FINAL: frozenset[RolloutStateName] = frozenset({"succeeded", "failed", "cancelled"})


def attempt_step(event: AttemptEvent) -> AttemptStep:
    """What an event means to its attempt."""
    if event.kind == "started":
        return "start_preparing" if event.status == "preparing" else "start_running"
    return ended_as(event) or "run"


def ended_as(event: AttemptEvent) -> AttemptOutcome | None:
    """The outcome that an event says, None if it is no end."""
    if event.kind != "ended":
        return None
    return next(end for end in _ENDS if end == event.status)


def rollout_step(step: AttemptStep, attempt: int, config: RolloutConfig | AttemptOrigin) -> RolloutStep:
    """What a step of the rollout's present attempt means to the rollout."""
    if step == "start_preparing" or step == "start_running" or step == "run":  # noqa: PLR1714  narrows the type
        return step
    if step == "succeeded":
        return "succeed"
    if step == "cancelled":
        return "cancel"
    return "retry" if step in config.retry_on and attempt < config.max_attempts else "fail"


def ends_rollout(end: AttemptEvent, attempt: int, origin: AttemptOrigin) -> bool:
    """Whether an attempt that ended so is its rollout's last."""
    return rollout_step(attempt_step(end), attempt, origin) in {"succeed", "fail", "cancel"}
