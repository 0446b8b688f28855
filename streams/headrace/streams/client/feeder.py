"""Feeder: tasks from a data set become groups of rollouts, as fast as the trainer takes them.

    with Client(kafka) as client:
        Feeder(client, tasks, FeederSettings(group_size=8, epochs=3), state_path=Path("feed.json")).run()

It follows what became of each group (`groups`), which versions were trained (`resources`), and which batches
were passed over (`train-steps`). Ids follow from the run's name and beginning and from a task's place, so
that a feeder that was killed goes on by its state file, and nothing runs twice.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import (
    GroupVerdict,
    ResourceVersion,
    RolloutCommand,
    RolloutConfig,
    TrainStep,
    Trajectory,
)
from headrace.schemas.topics import topic_name
from headrace.streams.client.feed_ledger import FeedLedger
from headrace.streams.client.feed_plan import FeedPlan
from headrace.streams.client.feed_progress import FeedObserver, FeedProgress, waiting_for
from headrace.streams.client.feed_settings import FeederSettings
from headrace.streams.client.feed_state import FeedState, FeedStateError, LedgerState, RoundState
from headrace.streams.client.feed_tasks import FeedTasks
from headrace.streams.client.feed_validation import Validation, ValidationReport
from headrace.streams.client.resource_versions import ResourceVersions
from headrace.streams.client.rollout_errors import NotEnqueuedError
from headrace.streams.client.rollouts import JSON, Client
from headrace.streams.client.tail import Place, Tail, Tailed

__all__ = [
    "FeedObserver",
    "FeedProgress",
    "FeedStateError",
    "Feeder",
    "FeederSettings",
    "ValidationReport",
]

_POLL_S = 0.25
_RETRY_S = 1.0
_BURST = 32
_SAVE_EVERY_S = 10.0
_SAY_EVERY_S = 60.0

log = structlog.get_logger(__name__)


class Feeder:
    """One run. For one thread; `stop` of `run` may be set from any."""

    def __init__(
        self,
        client: Client,
        tasks: Sequence[JSON],
        settings: FeederSettings | None = None,
        *,
        val_tasks: Sequence[JSON] = (),
        task_ids: Sequence[str] | None = None,
        val_task_ids: Sequence[str] | None = None,
        config: RolloutConfig | None = None,
        state_path: Path | None = None,
        observer: FeedObserver | None = None,
    ) -> None:
        """`task_ids` name tasks; without them it is their place. BadTaskError for what can't be a task."""
        self.settings = settings or FeederSettings()
        self._client = client
        self._observer = observer
        self._state_path = state_path
        self._tasks = FeedTasks(
            self.settings,
            config or RolloutConfig(),
            tasks,
            val_tasks,
            task_ids=task_ids,
            val_task_ids=val_task_ids,
        )
        prefix = client.settings.topic_prefix
        self._groups = topic_name(GroupVerdict, prefix)
        self._resources = topic_name(ResourceVersion, prefix)
        self._steps = topic_name(TrainStep, prefix)
        self._positions: dict[Place, int] = {}
        """The next record of each partition."""
        self._ledger = FeedLedger(
            topic_name(Trajectory, prefix),
            max_in_flight=self.settings.max_in_flight_groups,
            max_ahead=self.settings.max_ahead_groups,
        )
        self._validation = Validation(
            every=self.settings.val_every if val_tasks else 0,
            at_start=bool(val_tasks) and self.settings.val_at_start,
        )
        self._versions = ResourceVersions(client.codec)
        self._reports: list[ValidationReport] = []
        self._saved_state: FeedState | None = None
        self._saved_s = self._said_s = time.monotonic()

    def run(self, stop: threading.Event | None = None) -> FeedProgress:
        """Return when every group has its verdict and every round of validation its report, or `stop` is set.

        While Kafka is away it waits. FeedStateError where the state file is of another run.
        """
        stop = stop or threading.Event()
        with Tail(self._client.settings, name="feeder") as tail:
            state = self._begin(tail)
            self._resume(state, stop)
            while not stop.is_set() and not self._is_over(state):
                state = self._validate(state, stop)
                state = self._feed(state, stop)
                num_reports = len(self._reports)
                for record in tail.poll(_POLL_S):
                    self._take(record)
                if len(self._reports) > num_reports or time.monotonic() - self._saved_s > _SAVE_EVERY_S:
                    state = self._saved(state)
                self._tell(state)
        return self._tell(self._saved(state))

    # --- the beginning -------------------------------------------------------------------------------

    def _begin(self, tail: Tail) -> FeedState:
        """The state of the run, new or not, with all that the log knows of it taken in."""
        places = [
            place for topic in (self._groups, self._resources, self._steps) for place in tail.places(topic)
        ]
        ends = tail.ends(places)
        state = self._load() or FeedState(
            run=self.settings.run,
            began_ms=time.time_ns() // 1_000_000,
            tasks=self._tasks.fingerprint(),
            groups_from=_of(self._groups, ends),
            steps_from=_of(self._steps, ends),
            ledger=LedgerState(),
            rounds={},
        )
        self._restore(state)
        oldest = tail.beginnings(places)
        known = {self._groups: state.groups_from, self._steps: state.steps_from}
        starts = {
            place: max(oldest[place], known.get(place.topic, {}).get(place.partition, 0)) for place in places
        }
        for record in tail.read(starts, ends):
            self._take(record)
        self._positions = {place: max(ends[place], starts[place]) for place in places}
        if any(
            oldest.get(Place(self._groups, partition), 0) > at for partition, at in state.groups_from.items()
        ):
            self._expire()
        tail.move(self._positions)
        return self._saved(state)

    def _load(self) -> FeedState | None:
        if self._state_path is None:
            return None
        state = FeedState.load(self._state_path)
        if state is not None:
            state.check(run=self.settings.run, tasks=self._tasks.fingerprint(), path=self._state_path)
        return state

    def _restore(self, state: FeedState) -> None:
        self._plan = FeedPlan(
            state.run,
            state.began_ms,
            num_tasks=self._tasks.num_train,
            epochs=self.settings.epochs,
            group_size=self.settings.group_size,
            seed=self.settings.seed,
            shuffle=self.settings.shuffle,
        )
        ledger = state.ledger or LedgerState(in_flight=tuple(range(state.next_index)))
        self._ledger.restore(ledger, state.next_index, lambda index: self._plan.group(index).group_id)
        for version in state.val_versions:
            self._validation.versions.append(version)
            if state.rounds is None or version in state.rounds:
                self._begin_round(version, (state.rounds or {}).get(version))

    def _expire(self) -> None:
        """Verdicts are gone that nobody read: what has none by now would be waited for without end."""
        num, versions = self._ledger.expire(), self._validation.expire()
        if num or versions:
            log.warning(
                "retention took verdicts before they were read", num_groups=num, val_versions=versions
            )

    # --- the loop ------------------------------------------------------------------------------------

    def _is_over(self, state: FeedState) -> bool:
        is_fed = state.next_index >= len(self._plan)
        return is_fed and not self._ledger.num_in_flight and not self._validation.num_left

    def _feed(self, state: FeedState, stop: threading.Event) -> FeedState:
        """Enqueue what there is room for, at most a burst."""
        begin = state.next_index
        until = min(len(self._plan), begin + min(self._ledger.room(), _BURST))
        if until == begin:
            return state
        for index in range(begin, until):
            self._ledger.add(self._plan.group(index).group_id)
        state = self._saved(state.model_copy(update={"next_index": until, "again_from": begin}))
        self._submit(self._train_commands(begin, until), stop)
        return state

    def _validate(self, state: FeedState, stop: threading.Event) -> FeedState:
        """Begin a round, if one is due."""
        version = max(self._versions.newest_version(self.settings.resource), 0)
        if not self._validation.due(version):
            return state
        self._begin_round(version)
        state = self._saved(state.model_copy(update={"val_versions": tuple(self._validation.versions)}))
        log.info("validation begins", version=version, num_tasks=self._tasks.num_val)
        self._submit(self._val_commands(version), stop)
        return state

    def _resume(self, state: FeedState, stop: threading.Event) -> None:
        """Enqueue again what may not have been: where it was, the dispatcher takes no notice."""
        self._submit(self._train_commands(state.again_from, state.next_index), stop)
        for version in self._validation.open_versions:
            self._submit(self._val_commands(version), stop)

    def _train_commands(self, begin: int, until: int) -> list[RolloutCommand]:
        """Of groups without a verdict."""
        planned = [self._plan.group(index) for index in range(begin, until)]
        left = [group for group in planned if self._ledger.is_in_flight(group.group_id)]
        return [command for group in left for command in self._tasks.commands(group, "train")]

    def _val_commands(self, version: int) -> list[RolloutCommand]:
        """Of a round's groups without a verdict."""
        pins = {self.settings.resource: version} if self.settings.val_pinned and version else {}
        planned = self._plan.round(version, self._tasks.num_val, self.settings.val_samples)
        left = [group for group in planned if self._validation.is_left(group.group_id)]
        return [command for group in left for command in self._tasks.commands(group, "val", pins)]

    def _begin_round(self, version: int, state: RoundState | None = None) -> None:
        samples = self.settings.val_samples
        groups = self._plan.round(version, self._tasks.num_val, samples)
        self._validation.begin(version, [group.group_id for group in groups], samples, state)

    def _submit(self, commands: Sequence[RolloutCommand], stop: threading.Event) -> None:
        """Return when Kafka has them all, or the run is to stop: the state says that they are wanted."""
        while commands and not stop.is_set():
            try:
                self._client.submit(commands)
            except NotEnqueuedError as error:
                log.warning("Kafka does not take rollouts, trying again", reason=str(error))
                commands = error.commands
                stop.wait(_RETRY_S)
            else:
                return

    def _take(self, record: Tailed) -> None:
        if record.at_end:
            return
        self._positions[record.place] = record.offset + 1
        if record.place.topic == self._resources:
            taken = self._versions.take(record.value, record.headers)
            if taken.taken == "newest" and taken.record and taken.record.name == self.settings.resource:
                self._ledger.advance(taken.record)
            return
        try:
            if record.place.topic == self._steps:
                self._ledger.pass_over(self._client.codec.decode(record.value, TrainStep))
            else:
                self._settle(self._client.codec.decode(record.value, GroupVerdict))
        except BadRecordError as error:
            log.warning(
                "not a record of its topic", place=_shown(record.place, record.offset), reason=str(error)
            )

    def _settle(self, verdict: GroupVerdict) -> None:
        self._ledger.settle(verdict)
        report = self._validation.settle(verdict)
        if report is not None:
            self._reports.append(report)
            log.info("validation", **report._asdict())
            if self._observer is not None:
                self._observer.validated(report)

    def _saved(self, state: FeedState) -> FeedState:
        """With what is known by now, and written if that is news."""
        state = state.model_copy(
            update={
                "groups_from": _of(self._groups, self._positions),
                "steps_from": _of(self._steps, self._positions),
                "ledger": self._ledger.state(),
                "rounds": self._validation.rounds(),
            }
        )
        self._saved_s = time.monotonic()
        if self._state_path is not None and state != self._saved_state:
            state.save(self._state_path)
            self._saved_state = state
        return state

    def _tell(self, state: FeedState) -> FeedProgress:
        version = self._versions.newest_version(self.settings.resource)
        ledger = self._ledger
        progress = FeedProgress(
            num_groups=len(self._plan),
            num_fed=state.next_index,
            epoch=min(state.next_index // max(self._tasks.num_train, 1), self.settings.epochs - 1),
            num_in_flight=ledger.num_in_flight,
            num_ahead=ledger.num_ahead,
            num_val_left=self._validation.num_left,
            version=version if version >= 0 else None,
            fates=Counter(ledger.fates),
            recent_outcome=ledger.recent_outcome,
            reports=tuple(self._reports),
            is_over=self._is_over(state),
        )
        if self._observer is not None:
            self._observer.progressed(progress)
        if time.monotonic() - self._said_s > _SAY_EVERY_S:
            self._said_s = time.monotonic()
            log.info(
                "feeding",
                fed=f"{progress.num_fed}/{progress.num_groups}",
                waiting_for=waiting_for(progress, ledger.room()),
            )
        return progress


def _of(topic: str, offsets: Mapping[Place, int]) -> dict[int, int]:
    """A topic's offsets, by partition."""
    return {place.partition: offset for place, offset in offsets.items() if place.topic == topic}


def _shown(place: Place, offset: int) -> str:
    return f"{place.topic}:{place.partition}:{offset}"
