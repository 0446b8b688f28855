"""A watch: some rollouts by id, and the newest state of each as the log tells it.

Of a rollout's states the highest revision is its present one, and a final one is its last (G7): what the log
holds twice, or again after a replay, changes nothing. A rollout that was enqueued and has no state yet is
queuing. Memory is one state a rollout, however many changes nobody has asked for yet.
"""

import threading
from collections.abc import Callable, Iterable, Mapping

from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import RolloutCommand, RolloutState


def queuing_state(command: RolloutCommand) -> RolloutState:
    """What the dispatcher will say first of a rollout."""
    return RolloutState(
        rollout_id=command.rollout_id,
        group_id=command.group_id,
        group_size=command.group_size,
        task_id=command.task_id,
        mode=command.mode,
        state="queuing",
        is_final=False,
        revision=1,
        metadata=command.metadata,
        time=command.time,
    )


def newer(known: RolloutState | None, state: RolloutState) -> bool:
    """Whether a state from the log takes the place of what is known of its rollout."""
    if known is None:
        return True
    return not known.is_final and (state.revision > known.revision or state.is_final)


class Watch:
    """Filled by the log's thread, asked from another. `notify` is called when there is something new."""

    def __init__(self, rollout_ids: Iterable[str], notify: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._notify = notify
        self._states: dict[str, RolloutState | None] = dict.fromkeys(rollout_ids)
        self._num_open = len(self._states)
        # In order, each once.
        self._changed: dict[str, None] = {}
        self._caught_up = False
        self._error: HeadraceError | None = None

    @property
    def rollout_ids(self) -> Iterable[str]:
        return self._states.keys()

    @property
    def is_finished(self) -> bool:
        """Every rollout's state is final."""
        return self._num_open == 0

    def drain(self) -> list[RolloutState]:
        """The newest state of each rollout that has changed since, the first to change first.

        Raises what has ended the reading.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            changed, self._changed = self._changed, {}
            return [state for rollout_id in changed if (state := self._states[rollout_id]) is not None]

    def is_caught_up(self) -> bool:
        """What was in the log when the watch began is read. Raises what has ended the reading."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._caught_up

    def states(self) -> Mapping[str, RolloutState | None]:
        """All as they are now; None of whom nothing is known."""
        with self._lock:
            return self._states.copy()

    # --- by the log's thread --------------------------------------------------------------------------

    def see(self, state: RolloutState) -> None:
        with self._lock:
            if not newer(self._states[state.rollout_id], state):
                return
            self._states[state.rollout_id] = state
            self._num_open -= state.is_final
            self._changed[state.rollout_id] = None
        self._notify()

    def see_command(self, command: RolloutCommand) -> None:
        if command.kind == "enqueue" and self._states[command.rollout_id] is None:
            self.see(queuing_state(command))

    def catch_up(self) -> None:
        with self._lock:
            self._caught_up = True
        self._notify()

    def fail(self, error: HeadraceError) -> None:
        with self._lock:
            self._error = error
        self._notify()
