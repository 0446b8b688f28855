"""What a runner takes from the topic of tasks, and what it needs of Kafka."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipeline import wait_until
from tests.streams.runner.harness import Rollouts, assert_one_end_each, rollouts_on

from headrace.cli.stack.kafka import KafkaBroker
from headrace.schemas.ids import uuid7
from headrace.schemas.records import AttemptTask
from headrace.schemas.topics import topic_name
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration


def test_what_is_no_task_goes_to_dead_letters_and_the_rest_goes_on(rollouts: Rollouts) -> None:
    topic = topic_name(AttemptTask, rollouts.kafka.topic_prefix)
    key = uuid7().encode()
    for value in (b"\x07nonsense", b"", None):
        rollouts.publisher.publish_bytes(topic, key, value)
    rollouts.publisher.flush()
    rollouts.runner("scripted:sync")
    ids = rollouts.enqueue(*[{"do": "return", "value": 1}] * 10, "this is no JSON")
    finals = rollouts.wait_final(ids)
    assert [finals[each].state for each in ids] == ["succeeded"] * 10 + ["failed"]
    assert "JSONDecodeError" in (finals[ids[-1]].error or "")
    wait_until(lambda: rollouts.runners_lag() == 0, what="all tasks committed")
    letters = rollouts.dead_letters()
    assert [(letter.consumer, letter.topic, letter.key_bytes) for letter in letters] == [
        ("runner", topic, key)
    ] * 3
    assert [letter.value for letter in letters] == [b"\x07nonsense", b"", None]


def test_a_task_that_comes_again_is_run_once(rollouts: Rollouts, tmp_path: Path) -> None:
    """To whichever runner: the log says who started it."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    runners = [rollouts.runner("scripted:asynchronous", number=number) for number in (1, 2)]
    wait_until(lambda: all("partitions assigned" in each.tail() for each in runners), what="both runners")
    (rollout_id,) = rollouts.enqueue({"do": "wait", "file": str(go), "begun": str(begun)})
    wait_until(begun.exists, what="the agent")
    wait_until(lambda: rollouts.runners_lag() == 0, what="the task committed")
    (task,) = rollouts.values(AttemptTask)
    topic = topic_name(AttemptTask, rollouts.kafka.topic_prefix)
    for partition in range(16):
        rollouts.publisher.publish_bytes(topic, rollout_id.encode(), task[2], partition=partition)
    rollouts.publisher.flush()
    wait_until(lambda: rollouts.runners_lag() == 0, what="all tasks committed")
    go.touch()
    rollouts.wait_final([rollout_id])
    assert len(begun.read_text().splitlines()) == 1
    assert_one_end_each(rollouts)
    assert all("task skipped" in each.tail() for each in runners)


@pytest.mark.chaos
def test_a_broker_that_is_away_for_a_while_costs_nothing(
    kafka_factory: Callable[[], KafkaBroker], topic_prefix: str, tmp_path: Path
) -> None:
    broker = kafka_factory()
    broker.start()
    settings = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_prefix=topic_prefix)
    with rollouts_on(settings, tmp_path) as rollouts:
        rollouts.dispatcher()
        runner = rollouts.runner("scripted:asynchronous", "--concurrency", "8")
        go, begun = tmp_path / "go", tmp_path / "begun"
        ids = rollouts.enqueue(*[{"do": "wait", "file": str(go), "begun": str(begun)}] * 20)
        rollouts.wait_some_running(8)
        broker.kill()
        # Their events have nowhere to go, and nothing else is begun.
        go.touch()
        broker.start()
        finals = rollouts.wait_final(ids, timeout_s=90)
        assert {(final.state, final.attempt) for final in finals.values()} == {("succeeded", 1)}
        assert len(begun.read_text().splitlines()) == 20
        assert_one_end_each(rollouts)
        rollouts.check_sequences()
        runner.send(signal.SIGTERM)
        assert runner.wait() == 0


def test_a_runner_waits_for_its_topics_and_says_what_is_missing(
    kafka: KafkaBroker, topic_prefix: str, tmp_path: Path
) -> None:
    """C18."""
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    with rollouts_on(settings, tmp_path) as rollouts:
        rollouts.kafka = settings.model_copy(update={"topic_prefix": f"{topic_prefix}x"})
        runner = rollouts.runner("scripted:sync", HEADRACE_RUNNER_STARTUP_TIMEOUT_S="1")
        assert runner.wait() == 1
        assert f"{topic_prefix}x.tasks.v1" in runner.tail()
        assert "headrace topics apply" in runner.tail()
        runner = rollouts.runner("scripted:sync", number=2)
        wait_until(lambda: "waiting" in runner.tail(), what="the word")
        runner.send(signal.SIGTERM)
        assert runner.wait() == 0


def test_prompts_and_tasks_are_not_logged(rollouts: Rollouts) -> None:
    runner = rollouts.runner("scripted:sync")
    secret = "the sky above the port"  # noqa: S105
    ids = rollouts.enqueue({"do": "raise", "prompt": secret}, f"no JSON: {secret}")
    rollouts.wait_final(ids)
    wait_until(lambda: runner.tail().count("attempt ended") == 2, what="both ends")
    log = (runner.log_path).read_text()
    assert secret not in log
    assert "as the task says" not in log
    assert os.environ["PATH"] not in log
