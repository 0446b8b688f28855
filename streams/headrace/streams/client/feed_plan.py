"""FeedPlan: which task comes when, and under which ids. Pure: a run that goes on gives the same again."""

import random
from typing import NamedTuple

from headrace.schemas.ids import derived_uuid7


class PlannedGroup(NamedTuple):
    """A group of rollouts of one task."""

    number: int
    epoch: int
    task_index: int
    group_id: str
    rollout_ids: tuple[str, ...]


class FeedPlan:
    """Groups 0, 1, 2 … of all epochs, and rounds of validation. `began_ms` is of the run, for its ids."""

    def __init__(
        self,
        run: str,
        began_ms: int,
        *,
        num_tasks: int,
        epochs: int,
        group_size: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._run = run
        self._began_ms = began_ms
        self._num_tasks = num_tasks
        self._epochs = epochs
        self._group_size = group_size
        self._seed = seed
        self._shuffle = shuffle
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return self._num_tasks * self._epochs

    def group(self, index: int) -> PlannedGroup:
        """IndexError beyond the last."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        epoch, place = divmod(index, self._num_tasks)
        task_index = self._order_of(epoch)[place]
        return self._planned(index, epoch, task_index, self._group_size, "train", str(epoch))

    def round(self, version: int, num_tasks: int, num_samples: int) -> list[PlannedGroup]:
        """One group for each validation task."""
        return [
            self._planned(index, version, index, num_samples, "val", str(version))
            for index in range(num_tasks)
        ]

    def _planned(self, index: int, epoch: int, task_index: int, size: int, *words: str) -> PlannedGroup:
        seed = (self._run, *words, str(task_index))
        return PlannedGroup(
            index,
            epoch,
            task_index,
            derived_uuid7(self._began_ms, *seed),
            tuple(derived_uuid7(self._began_ms, *seed, str(sample)) for sample in range(size)),
        )

    def _order_of(self, epoch: int) -> list[int]:
        if self._order[0] != epoch:
            order = list(range(self._num_tasks))
            if self._shuffle:
                # Not for secrets: it must come out the same again.
                random.Random(f"{self._seed}/{epoch}").shuffle(order)  # noqa: S311
            self._order = epoch, order
        return self._order[1]
