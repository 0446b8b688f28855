"""Attempt: what an agent's code sees of the attempt that it runs in."""

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.schemas.records import AttemptTask, ResourceVersion
from headrace.streams.runner.attempt_events import AttemptEvents
from headrace.streams.runner.outbox import Outbox
from headrace.streams.runner.outlet import Outlet
from headrace.streams.runner.sequencer import Sequencer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.schemas.records.rollout import Mode


class Attempt(AttemptEvents):
    """A task in work, and the events that it emits. Safe to share between threads."""

    def __init__(
        self, task: AttemptTask, attempt_id: str, *, outlet: Outlet, outbox: Outbox, sequencer: Sequencer
    ) -> None:
        super().__init__(task.rollout_id, attempt_id, outlet=outlet, outbox=outbox, sequencer=sequencer)
        self.record = task
        self.number = task.attempt
        """1 for the first attempt of its rollout."""
        self.task_id = task.task_id
        self.mode: Mode = task.mode
        self.metadata: Mapping[str, str] = task.metadata
        self.resources: Mapping[str, ResourceVersion] = {}
        """By name; set before the agent begins, as is the next."""
        self.base_url: str | None = None
        """Of an OpenAI-compatible API for this attempt's calls, where one is known."""
        self.api_key: str | None = None
        """For it; None where the environment's serves."""

    @cached_property
    def task(self) -> Any:  # noqa: ANN401  JSON
        """The task, parsed. ValueError if it is no JSON."""
        return json.loads(self.record.task)
