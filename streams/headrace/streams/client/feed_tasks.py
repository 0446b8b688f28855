"""FeedTasks: the data sets of a run, and the commands that enqueue groups of them. Pure but for the time."""

import hashlib
from collections.abc import Mapping, Sequence

from headrace.schemas.records import RolloutCommand, RolloutConfig, now
from headrace.schemas.records.rollout import Mode
from headrace.streams.client.feed_plan import PlannedGroup
from headrace.streams.client.feed_settings import FeederSettings
from headrace.streams.client.rollout_errors import BadTaskError
from headrace.streams.client.rollouts import JSON, task_text


class FeedTasks:
    """Tasks that train, and those of validation, each with a name."""

    def __init__(
        self,
        settings: FeederSettings,
        config: RolloutConfig,
        tasks: Sequence[JSON],
        val_tasks: Sequence[JSON] = (),
        *,
        task_ids: Sequence[str] | None = None,
        val_task_ids: Sequence[str] | None = None,
    ) -> None:
        """Without ids a task's name is its place. BadTaskError for what can't be a task."""
        self._settings = settings
        self._config = config
        self._train = _named(tasks, task_ids, "")
        self._val = _named(val_tasks, val_task_ids, "val-")

    @property
    def num_train(self) -> int:
        return len(self._train)

    @property
    def num_val(self) -> int:
        return len(self._val)

    def fingerprint(self) -> str:
        """Of the tasks, their order, and how they are grouped."""
        settings = self._settings
        chosen = (settings.group_size, settings.seed, settings.shuffle, settings.val_samples)
        digest = hashlib.sha256(repr(chosen).encode())
        for name, text in (*self._train, *self._val):
            digest.update(f"{len(name)} {len(text)} {name}{text}".encode())
        return digest.hexdigest()

    def commands(
        self, group: PlannedGroup, mode: Mode, pins: Mapping[str, int] | None = None
    ) -> list[RolloutCommand]:
        """One for each rollout of the group."""
        name, text = (self._train if mode == "train" else self._val)[group.task_index]
        step = "epoch" if mode == "train" else "version"
        return [
            RolloutCommand(
                kind="enqueue",
                rollout_id=rollout_id,
                group_id=group.group_id,
                group_size=len(group.rollout_ids),
                task_id=name,
                mode=mode,
                task=text,
                config=self._config,
                resources=dict(pins or {}),
                metadata={"run": self._settings.run, step: str(group.epoch)},
                time=now(),
            )
            for rollout_id in group.rollout_ids
        ]


def _named(tasks: Sequence[JSON], names: Sequence[str] | None, prefix: str) -> list[tuple[str, str]]:
    """(name, JSON) of each."""
    if names is not None and len(names) != len(tasks):
        raise BadTaskError(f"{len(tasks)} tasks and {len(names)} task ids")
    texts = [task_text(task, index) for index, task in enumerate(tasks)]
    return list(zip(names or [f"{prefix}{index}" for index in range(len(texts))], texts, strict=True))
