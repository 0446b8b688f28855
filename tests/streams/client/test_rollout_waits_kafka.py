"""Waiting for rollouts on real Kafka: each counts once, and nobody waits for ever."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pipeline import wait_until
from tests.streams.client.dispatching import HandRunner, dispatcher_process

from headrace.cli.stack.kafka import KafkaBroker
from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.errors import FatalError
from headrace.schemas.ids import uuid7
from headrace.schemas.records import RolloutConfig, RolloutState, now
from headrace.streams.client.admin import apply_topics
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.rollout_errors import UnknownRolloutError, WaitTimeoutError
from headrace.streams.client.rollouts import Client
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration


ONCE = RolloutConfig(max_attempts=1)


def states_of(found: dict[str, RolloutState | None]) -> Counter[str]:
    return Counter(state.state if state else "unknown" for state in found.values())


def test_each_rollout_counts_once_however_often_it_is_tried_or_told(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner, rollout_topics: KafkaSettings
) -> None:
    """C2: 33 of 32."""
    enqueued = client.enqueue(["task"] * 32, config=RolloutConfig(max_attempts=2, retry_on=("failed",)))
    runner.run(32, "failed", "a model error")
    waiting = client.wait(enqueued, timeout_s=60)
    runner.end(runner.start(runner.take(32)))
    finals = [next(waiting) for _ in range(5)]
    with Publisher(rollout_topics) as publisher:
        for state in finals:
            publisher.publish(state)
        publisher.publish(finals[0].model_copy(update={"state": "failed", "revision": 99}))
        publisher.flush()
    finals += waiting
    assert Counter(state.rollout_id for state in finals) == {each.rollout_id: 1 for each in enqueued}
    assert {(state.state, state.attempt) for state in finals} == {("succeeded", 2)}
    # Once more, when all is over, and by one that knows nothing.
    with Client(rollout_topics) as other:
        again = other.wait_all(enqueued, timeout_s=30)
    assert list(again) == [each.rollout_id for each in enqueued]
    assert {key: state.revision for key, state in again.items()} == {
        state.rollout_id: state.revision for state in finals
    }


def test_states_on_the_way_are_followed(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner
) -> None:
    enqueued = client.enqueue(["task"], config=ONCE)
    following = client.follow(enqueued, timeout_s=60)
    assert next(following).state == "queuing"
    started = runner.start(runner.take(1))
    assert next(following).state == "running"
    runner.end(started, "failed", "it broke")
    last = next(following)
    assert (last.state, last.attempt_status, last.error) == ("failed", "failed", "it broke")
    assert list(following) == []


def test_a_deadline_passes_without_a_runner_s_help(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner
) -> None:
    enqueued = client.enqueue(["task"], config=RolloutConfig(max_attempts=1, timeout_s=0.3))
    runner.start(runner.take(1))
    (final,) = client.wait(enqueued, timeout_s=60)
    assert (final.state, final.attempt_status) == ("failed", "timeout")


def test_a_timeout_says_which_and_in_what_state(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner
) -> None:
    enqueued = client.enqueue(["task"] * 3, config=ONCE)
    tasks = runner.take(2)
    runner.end(runner.start(tasks[:1]))
    runner.start(tasks[1:])
    done, runs = (task.rollout_id for task in tasks)
    (queues,) = {each.rollout_id for each in enqueued} - {done, runs}
    waiting = client.wait(enqueued, timeout_s=5)
    assert next(waiting).rollout_id == done
    with pytest.raises(WaitTimeoutError) as caught:
        next(waiting)
    assert {key: state and state.state for key, state in caught.value.states.items()} == {
        runs: "running",
        queues: "queuing",
    }
    assert f"after 5 s 2 of 3 rollouts are not final. 1 queuing: {queues}; 1 running: {runs}" in str(
        caught.value
    )


def test_an_unknown_rollout_is_told_at_once(client: Client) -> None:
    (known,) = client.enqueue(["task"])
    unknown = uuid7()
    began = time.monotonic()
    with pytest.raises(UnknownRolloutError, match=f"no such rollout: {unknown}"):
        client.wait_all([known, unknown], timeout_s=60)
    assert time.monotonic() - began < 30


def test_a_wait_begun_before_the_dispatcher_sees_it_through(
    client: Client, rollout_topics: KafkaSettings, runner: HandRunner, tmp_path: Path
) -> None:
    enqueued = client.enqueue(["task"] * 10)
    waiting = client.wait(enqueued, timeout_s=60)
    process = dispatcher_process(rollout_topics, tmp_path / "dispatcher")
    process.start()
    try:
        runner.run(5)
        got = [next(waiting) for _ in range(5)]
        process.kill()
        process.start()
        runner.run(5)
        got += waiting
    finally:
        process.kill()
    assert {state.rollout_id for state in got} == {each.rollout_id for each in enqueued}


def test_many_wait_at_once_each_for_its_own(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner
) -> None:
    """They begin at different times and places, and share one consumer."""
    got: dict[int, dict[str, RolloutState]] = {}
    expected: dict[int, set[str]] = {}

    def wait_for(number: int) -> None:
        mine = client.enqueue(["task"] * (number + 1))
        expected[number] = {each.rollout_id for each in mine}
        got[number] = client.wait_all(mine, timeout_s=90)

    threads = [threading.Thread(target=wait_for, args=(number,)) for number in range(8)]
    for thread in threads[:4]:
        thread.start()
    runner.run(4)
    for thread in threads[4:]:
        thread.start()
    runner.run(32)
    for thread in threads:
        thread.join(90)
    assert {number: set(states) for number, states in got.items()} == expected
    assert len(got) == 8


def test_closing_ends_what_waits(rollout_topics: KafkaSettings) -> None:
    client = Client(rollout_topics)
    enqueued = client.enqueue(["task"])
    errors: list[Exception] = []

    def wait() -> None:
        try:
            client.wait_all(enqueued)
        except FatalError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert next(client.follow(enqueued)).state == "queuing"
    client.close()
    thread.join(30)
    assert [str(error) for error in errors] == ["the client was closed"]


def test_an_abandoned_wait_leaves_nothing_behind(client: Client) -> None:
    """C5."""
    enqueued = client.enqueue(["task"] * 20)
    for _ in range(5):
        waiting = client.follow(enqueued, timeout_s=30)
        next(waiting)
        del waiting
    log = client.log
    wait_until(lambda: not log._questions, what="no question left", timeout_s=10)
    assert not log._by_key
    assert not log._positions
    assert not log._tail._assigned


@pytest.mark.chaos
def test_a_wait_outlives_the_broker_s_absence(
    kafka_factory: Callable[[], KafkaBroker], topic_prefix: str
) -> None:
    broker = kafka_factory()
    broker.start()
    settings = KafkaSettings(
        bootstrap_servers=broker.bootstrap_servers, topic_prefix=topic_prefix, extra={"log_level": 0}
    )
    apply_topics(settings)
    with Client(settings) as client:
        enqueued = client.enqueue(["task"] * 2)
        following = client.follow(enqueued, timeout_s=120)
        assert {next(following).state, next(following).state} == {"queuing"}
        broker.kill()
        broker.start()
        with Publisher(settings) as publisher:
            for each in enqueued:
                publisher.publish(
                    RolloutState(
                        rollout_id=each.rollout_id,
                        group_id="g",
                        state="succeeded",
                        is_final=True,
                        revision=2,
                        time=now(),
                    )
                )
        assert sorted(state.rollout_id for state in following) == sorted(each.rollout_id for each in enqueued)
