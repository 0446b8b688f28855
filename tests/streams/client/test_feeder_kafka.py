"""A feeder on real Kafka, its verdicts and versions given by hand: what it enqueues, and how it goes on."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.builders import CODEC
from tests.pipeline import wait_until
from tests.streams.client.test_feed import step, verdict

from headrace.schemas.records import GroupVerdict, ResourceVersion, RolloutCommand, now
from headrace.schemas.topics import topic_name
from headrace.streams.client.feeder import (
    Feeder,
    FeederSettings,
    FeedProgress,
    FeedStateError,
    ValidationReport,
)
from headrace.streams.client.rollout_errors import BadTaskError
from headrace.streams.client.rollouts import Client
from headrace.streams.client.tail import Tail
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

TASKS = [{"question": number} for number in range(4)]


class Run:
    """A feeder in a thread of its own, and what it has enqueued so far."""

    def __init__(self, client: Client, state_path: Path, **options: Any) -> None:
        self.client = client
        self.state_path = state_path
        self.reports: list[ValidationReport] = []
        self.progress: FeedProgress | None = None
        self.result: FeedProgress | None = None
        self.stop = threading.Event()
        settings = {name: options.pop(name) for name in list(options) if name in FeederSettings.model_fields}
        chosen = FeederSettings(**({"group_size": 2, "max_in_flight_groups": 2} | settings))
        self._feeder = Feeder(client, TASKS, chosen, state_path=state_path, observer=self, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._feeder.run(self.stop)

    def progressed(self, progress: FeedProgress) -> None:
        self.progress = progress

    def validated(self, report: ValidationReport) -> None:
        self.reports.append(report)

    def end(self) -> FeedProgress:
        """Wait for it to be over."""
        self._thread.join(30)
        assert self.result is not None
        return self.result

    def commands(self, mode: str = "train") -> list[RolloutCommand]:
        topic = topic_name(RolloutCommand, self.client.settings.topic_prefix)
        with Tail(self.client.settings, name="test") as tail:
            places = tail.places(topic)
            read = list(tail.read(tail.beginnings(places), tail.ends(places)))
        found = [CODEC.decode(record.value, RolloutCommand) for record in read]
        found.sort(key=lambda command: command.time)  # they come from several partitions
        return [command for command in found if command.mode == mode]

    def groups(self, number: int, mode: str = "train") -> list[str]:
        """Their ids, once there are so many."""

        def found() -> list[str]:
            return list(dict.fromkeys(command.group_id for command in self.commands(mode)))

        wait_until(lambda: len(found()) >= number, what=f"{number} groups")
        return found()

    def settle(self, groups: Sequence[str], batch_id: str | None = "b", **fields: Any) -> None:
        for group_id in groups:
            self.client.publisher.publish(verdict(group_id, batch_id, **fields))
        self.client.publisher.flush()

    def age(self) -> None:
        """Retention takes all verdicts that are there."""
        topic = topic_name(GroupVerdict, self.client.settings.topic_prefix)
        with Tail(self.client.settings, name="test") as tail:
            ends = tail.ends(tail.places(topic))
        admin = AdminClient(self.client.settings.librdkafka())
        for done in admin.delete_records(
            [TopicPartition(*place, end) for place, end in ends.items()]
        ).values():
            done.result()

    def passed_over(self, *batch_ids: str) -> None:
        self.client.publisher.publish(step(*batch_ids, num_steps=0))
        self.client.publisher.flush()

    def version(self, number: int, **fields: Any) -> None:
        record = ResourceVersion(name="policy", version=number, kind="weights", time=now(), **fields)
        self.client.publisher.publish(record)
        self.client.publisher.flush()


MakeRun = Callable[..., Run]


@pytest.fixture
def start(client: Client, tmp_path: Path) -> Iterator[MakeRun]:
    made: list[Run] = []

    def make(**options: Any) -> Run:
        made.append(Run(client, tmp_path / "feed.json", **options))
        return made[-1]

    yield make
    for run in made:
        run.stop.set()
        run.end()


def test_groups_are_fed_as_verdicts_come_in_to_the_end_of_all_epochs(start: MakeRun) -> None:
    run = start(epochs=2, task_ids=["a", "b", "c", "d"])
    done = 0
    while done < 8:
        groups = run.groups(done + 1)
        assert len(groups) <= done + 2
        run.settle(groups[done : done + 1], "b" if done % 2 else None, outcome_mean=0.5)
        done += 1
    progress = run.end()
    assert (progress.num_fed, progress.num_groups, progress.is_over) == (8, 8, True)
    assert progress.fates == {"batched": 4, "no_contrast": 4}
    commands = run.commands()
    assert len({command.rollout_id for command in commands}) == len(commands) == 16
    assert sorted(command.task_id for command in commands) == sorted(["a", "b", "c", "d"] * 4)
    assert {(c.group_size, c.mode, c.kind) for c in commands} == {(2, "train", "enqueue")}
    assert {command.metadata["epoch"] for command in commands} == {"0", "1"}


def test_it_waits_for_the_trainer_where_staleness_is_bounded(start: MakeRun) -> None:
    """C15."""
    run = start(max_in_flight_groups=64, max_staleness=1, groups_per_version=1)
    first = run.groups(2)
    run.settle(first, "b1")
    wait_until(lambda: run.progress is not None and run.progress.num_in_flight == 0, what="verdicts")
    assert run.progress is not None
    assert run.progress.num_ahead == 2
    assert len(run.groups(2)) == 2
    run.version(1, trained_on=("b1",))
    run.settle(run.groups(4)[2:], None)
    assert run.end().fates == {"batched": 2, "no_contrast": 2}


def test_batches_that_the_trainer_passed_over_are_not_waited_for(start: MakeRun) -> None:
    """No version comes of them: the feeder and the trainer would wait for each other without end."""
    run = start(max_in_flight_groups=64, max_staleness=0, groups_per_version=2)
    first = run.groups(2)
    run.settle(first, "b1")
    run.passed_over("b1")
    second = run.groups(4)[2:]
    run.stop.set()
    run.end()
    run.settle(second, "b2")
    run.passed_over("b2")
    again = start(max_in_flight_groups=64, max_staleness=0, groups_per_version=2)
    progress = again.end()
    assert (progress.fates, progress.num_ahead) == ({"batched": 4}, 0)


def test_a_feeder_goes_on_after_retention_has_taken_what_it_knows(start: MakeRun) -> None:
    options = {"max_staleness": 0, "groups_per_version": 2, "val_tasks": ["v"], "val_at_start": True}
    run = start(**options)
    first, (val,) = run.groups(2), run.groups(1, "val")
    run.settle(first, "b1", outcome_mean=0.5)
    run.settle([val], None, reason="mode_val", mode="val")
    wait_until(lambda: run.progress is not None and run.progress.num_in_flight == 0, what="verdicts")
    wait_until(lambda: len(run.reports) == 1, what="the report")
    run.stop.set()
    run.end()
    run.age()
    num_commands = len(run.commands()) + len(run.commands("val"))
    again = start(**options)
    wait_until(lambda: again.progress is not None, what="the first word of progress")
    assert again.progress is not None
    assert (again.progress.num_in_flight, again.progress.num_ahead, again.progress.num_val_left) == (0, 2, 0)
    assert (again.progress.fates, again.progress.recent_outcome) == ({"batched": 2}, 0.5)
    assert len(again.commands()) + len(again.commands("val")) == num_commands
    again.version(1, trained_on=("b1",))
    again.settle(again.groups(4)[2:], None)
    assert again.end().fates == {"batched": 2, "no_contrast": 2}
    assert again.reports == []


@pytest.mark.parametrize("is_old", [False, True], ids=["of now", "of an earlier version"])
def test_verdicts_that_nobody_read_are_not_waited_for(start: MakeRun, *, is_old: bool) -> None:
    """The state file may say nothing of what was settled."""
    options: dict[str, Any] = {"val_tasks": ["v"], "val_at_start": True}
    run = start(**options)
    first, val = run.groups(2), run.groups(1, "val")
    run.stop.set()
    run.end()
    if is_old:
        state = json.loads(run.state_path.read_text())
        for name in ("ledger", "rounds", "steps_from"):
            del state[name]
        run.state_path.write_text(json.dumps(state))
    run.settle(first)
    run.settle(val, None, mode="val")
    run.age()
    again = start(**options)
    again.settle(again.groups(4)[2:], None)
    progress = again.end()
    assert progress.fates == {"verdict_expired": 2, "no_contrast": 2}
    assert (progress.num_val_left, again.reports) == (0, [])
    assert len(again.commands("val")) == 1


def test_a_killed_feeder_goes_on_where_it_was(start: MakeRun) -> None:
    run = start()
    first = run.groups(2)
    run.stop.set()
    assert not run.end().is_over
    run.settle(first[:1])  # while nobody fed
    again = start()
    third = again.groups(3)
    assert third[:2] == first
    again.settle(third[1:])
    again.settle(again.groups(4)[3:])
    assert again.end().fates == {"batched": 4}
    repeated = again.commands()
    assert len({command.rollout_id for command in repeated}) == 8
    assert start().end().num_fed == 4  # over already
    with pytest.raises(FeedStateError, match="another set of tasks"):
        Feeder(run.client, TASKS[:1], FeederSettings(), state_path=again._feeder._state_path).run()


def test_what_was_taken_in_after_the_state_was_written_is_taken_in_again(start: MakeRun) -> None:
    """Killed before it wrote again, and nothing counts twice."""
    run = start(max_in_flight_groups=4)
    groups = run.groups(4)
    saved = run.state_path.read_bytes()
    run.settle(groups[:2], outcome_mean=0.5)
    wait_until(lambda: run.progress is not None and run.progress.num_in_flight == 2, what="verdicts")
    run.stop.set()
    run.end()
    for state in (saved, run.state_path.read_bytes()):
        run.state_path.write_bytes(state)
        again = start(max_in_flight_groups=4)
        wait_until(lambda again=again: again.progress is not None, what="progress")  # type: ignore[misc]
        assert again.progress is not None
        assert (again.progress.fates, again.progress.num_in_flight) == ({"batched": 2}, 2)
        again.stop.set()
        again.end()
    last = start(max_in_flight_groups=4)
    last.settle(groups, None)
    assert last.end().fates == {"batched": 2, "no_contrast": 2}


def test_validation_comes_every_few_versions_and_reports(start: MakeRun) -> None:
    run = start(val_tasks=["v1", "v2"], val_every=2, val_samples=2, val_at_start=True)
    before = run.groups(2, "val")
    assert {tuple(command.resources.items()) for command in run.commands("val")} == {()}
    run.settle(before, None, mode="val", num_accepted=2, outcome_mean=0.25)
    wait_until(lambda: len(run.reports) == 1, what="the first report")
    run.version(1)
    run.version(2)
    second = run.groups(4, "val")[2:]
    pinned = [command for command in run.commands("val") if command.group_id in second]
    assert {tuple(command.resources.items()) for command in pinned} == {(("policy", 2),)}
    run.settle(second[:1], None, mode="val", num_accepted=1, outcome_mean=1.0)
    wait_until(lambda: run.progress is not None and run.progress.num_val_left == 1, what="half of the round")
    run.stop.set()
    run.end()
    run.age()
    again = start(val_tasks=["v1", "v2"], val_every=2, val_samples=2, val_at_start=True)
    again.settle(second[1:], None, mode="val", num_accepted=1, outcome_mean=1.0)
    wait_until(lambda: len(again.reports) == 1, what="the second report")
    assert [
        (r.version, r.num_rollouts, r.num_failed, r.outcome_mean) for r in (*run.reports, *again.reports)
    ] == [(0, 4, 0, 0.25), (2, 4, 2, 1.0)]
    assert len(again.groups(4, "val")) == 4


def test_what_can_not_be_a_task_is_refused_before_anything_runs(rollout_topics: KafkaSettings) -> None:
    with Client(rollout_topics) as client:
        with pytest.raises(BadTaskError, match="task 1 is not JSON"):
            Feeder(client, [1, float("nan")])
        with pytest.raises(BadTaskError, match="2 tasks and 1 task ids"):
            Feeder(client, [1, 2], task_ids=["a"])
