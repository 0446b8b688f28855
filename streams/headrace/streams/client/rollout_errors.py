"""What can go wrong with rollouts and with waiting for them, each said by their ids."""

from collections.abc import Collection, Mapping, Sequence

from headrace.schemas.errors import FatalError, RetryableError
from headrace.schemas.records import RolloutCommand, RolloutState

_SHOWN = 5


class BadTaskError(FatalError):
    """A task that can't be enqueued as it is; none of those given with it was."""


class BadRolloutIdError(FatalError):
    """Not an id that a rollout can have."""


class UnknownRolloutError(FatalError):
    """Neither a command nor a state of these rollouts is in the topics."""

    def __init__(self, rollout_ids: Collection[str]) -> None:
        self.rollout_ids = tuple(rollout_ids)
        super().__init__(
            f"no such rollout{'s' * (len(rollout_ids) != 1)}: {_shown(rollout_ids)}. Never enqueued under "
            "this topic prefix, or so long ago that the topics no longer tell"
        )


class NotEnqueuedError(RetryableError):
    """Kafka did not acknowledge these commands: they may be there or not.

    `Client.submit(error.commands)` tries the same ids again, so that nothing runs twice.
    """

    def __init__(self, commands: Sequence[RolloutCommand], num_acknowledged: int, why: str) -> None:
        self.commands = tuple(commands)
        super().__init__(
            f"{len(commands)} of {len(commands) + num_acknowledged} commands were not acknowledged: {why}"
        )


class WaitTimeoutError(RetryableError):
    """Rollouts that were not final in time; `states` has what was known of each of them."""

    def __init__(self, states: Mapping[str, RolloutState | None], num_asked: int, timeout_s: float) -> None:
        self.states = dict(states)
        by_state: dict[str, list[str]] = {}
        for rollout_id, state in states.items():
            name = "not looked up yet" if state is None else _described(state)
            by_state.setdefault(name, []).append(rollout_id)
        parts = "; ".join(f"{len(ids)} {name}: {_shown(ids)}" for name, ids in sorted(by_state.items()))
        super().__init__(
            f"after {timeout_s:g} s {len(states)} of {num_asked} rollouts are not final. {parts}"
        )


def _described(state: RolloutState) -> str:
    return f"{state.state} (attempt {state.attempt})" if state.attempt > 1 else state.state


def _shown(rollout_ids: Collection[str]) -> str:
    words = ", ".join(list(rollout_ids)[:_SHOWN])
    return f"{words} …" if len(rollout_ids) > _SHOWN else words
