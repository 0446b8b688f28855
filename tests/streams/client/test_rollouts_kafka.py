"""The client on real Kafka, with the real dispatcher: right at once, and each rollout once."""

import asyncio
import time
from collections import Counter

import pytest
from tests.builders import an_id
from tests.pipeline import wait_until
from tests.streams.client.dispatching import HandRunner

from headrace.cli.stack.processor import ProcessorProcess
from headrace.schemas.ids import uuid7
from headrace.schemas.records import RolloutCommand, RolloutConfig, RolloutState, now
from headrace.schemas.topics import topic_name
from headrace.streams.client.async_rollouts import AsyncClient
from headrace.streams.client.partitions import partition_of
from headrace.streams.client.publisher import Publisher
from headrace.streams.client.rollout_errors import UnknownRolloutError, WaitTimeoutError
from headrace.streams.client.rollout_history import read_history, scan_rollouts
from headrace.streams.client.rollouts import Client
from headrace.streams.client.tail import Tail
from headrace.streams.settings import KafkaSettings

pytestmark = pytest.mark.integration

ONCE = RolloutConfig(max_attempts=1)


def states_of(found: dict[str, RolloutState | None]) -> Counter[str]:
    return Counter(state.state if state else "unknown" for state in found.values())


# --- enqueue, and what is right at once -----------------------------------------------------------------


def test_what_was_enqueued_is_queuing_at_once_for_everybody(
    client: Client, rollout_topics: KafkaSettings
) -> None:
    enqueued = client.enqueue([{"n": n} for n in range(5)], num_samples=2, metadata={"run": "x"})
    unknown = uuid7()
    with Client(rollout_topics) as other:
        for each in (client, other):
            found = each.status([*enqueued, unknown])
            assert states_of(found) == {"queuing": 10, "unknown": 1}
            assert found[unknown] is None
            one = found[enqueued[3].rollout_id]
            assert one is not None
            assert (one.group_id, one.group_size, one.metadata) == (enqueued[3].group_id, 2, {"run": "x"})


def test_samples_of_a_task_are_one_group(client: Client, rollout_topics: KafkaSettings) -> None:
    config = RolloutConfig(timeout_s=7, accept=("succeeded", "failed"))
    enqueued = client.enqueue(
        iter([{"q": "é"}, None]),
        num_samples=3,
        mode="val",
        config=config,
        resources={"policy": 4},
        task_ids=["first", "second"],
    )
    assert len({each.rollout_id for each in enqueued}) == 6
    assert [each.task_index for each in enqueued] == [0, 0, 0, 1, 1, 1]
    assert len({each.group_id for each in enqueued}) == 2
    for each, text in zip(enqueued, ['{"q":"é"}'] * 3 + ["null"] * 3, strict=True):
        command = read_history(rollout_topics, client.codec, each.rollout_id).enqueued
        assert command is not None
        assert command.model_dump(exclude={"time"}) == {
            "kind": "enqueue",
            "rollout_id": each.rollout_id,
            "group_id": each.group_id,
            "group_size": 3,
            "task_id": each.task_id,
            "mode": "val",
            "task": text,
            "config": config.model_dump(),
            "resources": {"policy": 4},
            "metadata": {},
        }


def test_one_sample_is_a_group_of_its_own(client: Client) -> None:
    (only,) = client.enqueue(["task"])
    assert only.group_id == only.rollout_id


def test_keys_are_where_every_writer_puts_them(client: Client, rollout_topics: KafkaSettings) -> None:
    ids = {each.rollout_id for each in client.enqueue([None] * 100)}
    with Tail(rollout_topics, name="test") as tail:
        places = tail.places(topic_name(RolloutCommand, rollout_topics.topic_prefix))
        for record in tail.read(tail.beginnings(places), tail.ends(places)):
            assert record.key is not None
            assert partition_of(record.key, len(places)) == record.place.partition
            ids.discard(record.key.decode())
    assert not ids


def test_a_state_is_seen_as_soon_as_it_is_acknowledged(client: Client, rollout_topics: KafkaSettings) -> None:
    """Whatever was read before: no answer comes from memory."""
    (one,) = client.enqueue(["task"])
    with Publisher(rollout_topics, linger_ms=0) as publisher:
        for revision in range(2, 30):
            state = RolloutState(
                rollout_id=one.rollout_id,
                group_id="g",
                state="running",
                is_final=False,
                attempt=revision,
                revision=revision,
                time=now(),
            )
            publisher.publish(state)
            publisher.flush()
            assert client.status([one]) == {one.rollout_id: state}


def test_submitting_again_runs_nothing_twice(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner, rollout_topics: KafkaSettings
) -> None:
    enqueued = client.enqueue(["task"] * 3)
    histories = [read_history(rollout_topics, client.codec, each.rollout_id) for each in enqueued]
    client.submit([history.commands[0] for history in histories])
    (last,) = client.enqueue(["last"])
    tasks = runner.take(4)
    assert {task.rollout_id for task in tasks} == {each.rollout_id for each in [*enqueued, last]}
    runner.end(runner.start(tasks))
    assert states_of(dict(client.wait_all([*enqueued, last], timeout_s=30))) == {"succeeded": 4}


# --- cancel ---------------------------------------------------------------------------------------------


def test_cancelling(client: Client, dispatcher: ProcessorProcess, runner: HandRunner) -> None:
    """One that waits, one that runs, one that is done."""
    enqueued = client.enqueue(["task"] * 3)
    tasks = runner.take(3)
    runner.end(runner.start(tasks[:1]))
    done = tasks[0].rollout_id
    client.wait_all([done], timeout_s=60)
    runner.start(tasks[1:2])
    client.cancel(enqueued)
    final = client.wait_all(enqueued, timeout_s=60)
    assert {key: state.state for key, state in final.items()} == {
        task.rollout_id: "succeeded" if task.rollout_id == done else "cancelled" for task in tasks
    }


# --- asyncio --------------------------------------------------------------------------------------------


def test_the_same_verbs_for_asyncio(
    rollout_topics: KafkaSettings, dispatcher: ProcessorProcess, runner: HandRunner
) -> None:
    async def main() -> None:
        async with AsyncClient(rollout_topics, linger_ms=1) as client:
            enqueued = await client.enqueue(["task"] * 6, num_samples=2)
            assert states_of(await client.status(enqueued))["unknown"] == 0
            first, second = enqueued[:6], enqueued[6:]
            waits = asyncio.gather(
                client.wait_all(first, timeout_s=60),
                client.wait_all(second, timeout_s=60),
            )
            tasks = await asyncio.to_thread(runner.take, 12)
            await client.cancel([tasks[0].rollout_id])
            started = await asyncio.to_thread(runner.start, tasks[1:])
            await asyncio.to_thread(runner.end, started)
            final = {key: state for part in await waits for key, state in part.items()}
            assert Counter(state.state for state in final.values()) == {"succeeded": 11, "cancelled": 1}
            (late,) = await client.enqueue(["task"])
            with pytest.raises(WaitTimeoutError, match=late.rollout_id):
                await client.wait_all([late], timeout_s=0.5)
            with pytest.raises(UnknownRolloutError):
                await client.wait_all([uuid7()], timeout_s=30)
            async for state in client.follow([late], timeout_s=30):
                assert state.state == "queuing"
                break
            waiting = asyncio.ensure_future(client.wait_all([late]))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())


# --- what has become of all -----------------------------------------------------------------------------


def test_a_scan_finds_each_once_in_its_present_state(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner, rollout_topics: KafkaSettings
) -> None:
    enqueued = client.enqueue(["task"] * 4)
    runner.run(2)
    runner.start(runner.take(1))
    wait_until(
        lambda: states_of(client.status(enqueued)) == {"succeeded": 2, "running": 1, "queuing": 1},
        what="two done, one running",
    )
    # Not the dispatcher's yet, nor ever: nothing but a command.
    dispatcher.kill()
    late = client.enqueue(["late"])
    client.cancel([uuid7()])
    found = scan_rollouts(rollout_topics, client.codec)
    assert set(found) == {each.rollout_id for each in [*enqueued, *late]}
    assert states_of(dict(found)) == {"succeeded": 2, "running": 1, "queuing": 2}
    assert scan_rollouts(rollout_topics, client.codec, since_ms=int(time.time() * 1000) + 60_000) == {}


def test_a_history_has_all_of_one(
    client: Client, dispatcher: ProcessorProcess, runner: HandRunner, rollout_topics: KafkaSettings
) -> None:
    config = RolloutConfig(max_attempts=2, retry_on=("failed",))
    mine, _ = client.enqueue(["task"] * 2, config=config)
    runner.run(2, "failed", "no luck")
    runner.run(2)
    client.wait_all([mine], timeout_s=60)
    client.cancel([mine])
    history = read_history(rollout_topics, client.codec, mine.rollout_id)
    assert [state.state for state in history.states] == [
        "queuing",
        "running",
        "requeuing",
        "running",
        "succeeded",
    ]
    assert [state.attempt for state in history.states] == [0, 1, 1, 2, 2]
    assert [command.kind for command in history.commands] == ["enqueue", "cancel"]
    assert read_history(rollout_topics, client.codec, an_id("nobody")) == ((), ())
