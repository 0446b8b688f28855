"""The client's own part: what may be enqueued, and what it says when Kafka is not there."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.builders import TIME, an_id

from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import RolloutCommand, RolloutConfig
from headrace.streams import client as package
from headrace.streams.client.rollout_errors import BadRolloutIdError, BadTaskError, NotEnqueuedError
from headrace.streams.client.rollouts import Client, EnqueuedRollout, checked_ids
from headrace.streams.settings import KafkaSettings

A, B = an_id("rollout", "a"), an_id("rollout", "b")


@pytest.fixture
def nowhere() -> Iterator[Client]:
    """A client of a broker that is not there."""
    extra = {"delivery.timeout.ms": 300, "log_level": 0}
    with Client(KafkaSettings(bootstrap_servers="127.0.0.1:1", extra=extra)) as client:
        yield client


def itself() -> list[Any]:
    task: list[Any] = []
    task.append(task)
    return task


@pytest.mark.parametrize(
    ("tasks", "options", "words"),
    [
        ([{"x": float("nan")}], {}, "task 0 is not JSON: it holds a number that is not finite"),
        ([1, float("inf")], {}, "task 1 is not JSON"),
        ([object()], {}, "task 0 is not JSON: it holds something that JSON has no form for"),
        ([itself()], {}, "task 0 is not JSON: .* or itself"),
        (["\ud800"], {}, "task 0 is not JSON: it holds text that is no Unicode"),
        (["x" * 9_000_000], {}, "task 0 takes 9000.* bytes: the limit is 8388608"),
        ([1, 2], {"task_ids": ["only one"]}, "2 tasks and 1 task ids"),
        ([1], {"mode": "production"}, "mode"),
        ([1], {"num_samples": 0}, "group_size"),
        ([1], {"resources": {"policy": -1}}, "resources"),
        ([1], {"config": RolloutConfig(credit_rule="outcme@1")}, "unknown credit rule 'outcme@1'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_task_is_refused_before_anything_is_published(
    nowhere: Client, tasks: list[Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadTaskError, match=words):
        nowhere.enqueue(tasks, **options)


def test_a_task_is_not_quoted_in_an_error(nowhere: Client) -> None:
    task: Any = {"secret": {"secret"}}
    with pytest.raises(BadTaskError) as caught:
        nowhere.enqueue([task])
    assert "secret" not in str(caught.value)


def test_commands_without_an_acknowledgement_come_back(nowhere: Client) -> None:
    """With their ids, so that trying again runs nothing twice."""
    commands = [RolloutCommand(kind="enqueue", rollout_id=each, group_id="g", time=TIME) for each in (A, B)]
    with pytest.raises(
        NotEnqueuedError, match=r"2 of 2 commands were not acknowledged: .*imed out"
    ) as caught:
        nowhere.submit(commands)
    assert caught.value.commands == tuple(commands)


def test_ids_are_checked_and_each_counts_once() -> None:
    assert checked_ids([A, EnqueuedRollout(B, "group", "", 0), A, B]) == [A, B]


@pytest.mark.parametrize("bad", ["", "7", A.upper(), A[:-1], A.replace("-7", "-4", 1)])
def test_what_can_be_no_id_is_refused(bad: str) -> None:
    with pytest.raises(BadRolloutIdError, match="not the id of a rollout"):
        checked_ids([A, bad])


def test_nothing_to_do_asks_nobody(nowhere: Client) -> None:
    assert nowhere.enqueue([]) == []
    assert nowhere.status([]) == {}
    assert list(nowhere.wait([])) == []
    assert nowhere.wait_all([]) == {}
    nowhere.cancel([])


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    with Client(KafkaSettings(bootstrap_servers="127.0.0.1:1", extra={"log_level": 0})):
        pass
    assert threading.active_count() == before


def test_the_package_exports_all_it_names() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        package.nothing_of_this_name  # noqa: B018  the access is the point


def test_every_error_is_one_of_ours() -> None:
    for error in (BadTaskError, BadRolloutIdError, NotEnqueuedError):
        assert issubclass(error, HeadraceError)
