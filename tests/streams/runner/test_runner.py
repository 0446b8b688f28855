"""The runner in memory: which tasks it runs, and what it does about what the log says."""

import asyncio
from typing import Any

import pytest
from tests.builders import an_id
from tests.streams.runner.scene import Scene, ScriptedExecutor, play
from tests.streams.runner.twins import a_task

from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import AttemptEvent, Record, Reward
from headrace.streams.client.errors import DeliveryError
from headrace.streams.runner.runner import SUPERSEDED


def test_a_life_in_the_log() -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.take(task)
        (execution,) = await the.running()
        assert the.started == [task.rollout_id]
        assert the.num_free == 0
        assert the.metrics.num_running == 1
        execution.attempt.emit_reward(1.0)
        execution.done(None)
        await the.until(lambda: the.metrics.ends)
        assert (the.num_free, the.metrics.num_running, the.runner.runs_here) == (1, 0, {})
        kinds = [type(record).__name__ for record in the.outlet.records]
        assert kinds == ["AttemptEvent", "Reward", "AttemptEvent"]
        assert the.ends() == [("succeeded", None, 1)]

    play(scene)


def test_an_agent_begins_when_the_log_has_its_start_and_ends_after_its_events() -> None:
    """G1, G3."""

    async def scene(the: Scene) -> None:
        the.take(a_task())
        await the.until(lambda: the.outlet.records)
        await asyncio.sleep(0.01)
        assert the.executor.executions == []
        assert the.started == []
        the.outlet.settle()
        (execution,) = await the.running()
        execution.attempt.emit_reward(1.0)
        execution.done(None)
        await asyncio.sleep(0.01)
        assert the.ends() == []
        the.outlet.settle()
        await the.until(the.ends)
        assert the.num_free == 1
        assert the.metrics.ends == []
        the.outlet.settle()
        await the.until(lambda: the.metrics.ends)

    play(scene, is_held=True)


def test_an_attempt_whose_events_kafka_did_not_take_has_failed() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task())
        await the.until(lambda: the.outlet.records)
        the.outlet.settle()
        (execution,) = await the.running()
        execution.attempt.emit_reward(1.0)
        execution.done(None)
        await asyncio.sleep(0.01)
        the.outlet.settle("too old")
        await the.until(the.ends)
        assert the.ends() == [("failed", "1 records were not acknowledged: too old", 1)]

    play(scene, is_held=True)


def test_a_task_that_comes_again_is_not_run_again() -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.take(task)
        (execution,) = await the.running()
        the.take(task)
        execution.done(None)
        await the.until(lambda: the.metrics.ends)
        the.take(task)
        assert the.metrics.skips == ["started", "started"]
        # It may be committed, and its slot is free.
        assert the.started == [task.rollout_id] * 3
        assert the.num_free == 3

    play(scene)


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("started", {}, "started"),
        ("ended", {"is_dispatchers": True, "status": "cancelled"}, "ended"),
        ("ended", {"is_dispatchers": True, "status": "unresponsive"}, "ended"),
    ],
    ids=["started elsewhere", "cancelled in the queue", "died elsewhere"],
)
def test_a_task_whose_attempt_the_log_knows_is_not_run(kind: str, fields: dict[str, Any], why: str) -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.hear(task, kind, an_id("elsewhere"), **fields)
        the.take(task)
        assert the.metrics.skips == [why]
        assert the.outlet.records == []
        the.take(a_task(attempt=2))
        await the.running()

    play(scene)


def test_who_is_second_in_the_log_stops() -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.take(task)
        (execution,) = await the.running()
        the.hear(task, "started", an_id("elsewhere"))
        await the.until(the.ends)
        assert execution.is_stopped
        assert the.ends() == [("cancelled", SUPERSEDED, 0)]

    play(scene)


def test_who_is_first_in_the_log_goes_on() -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.take(task)
        (execution,) = await the.running()
        the.hear(task, "started", execution.attempt.attempt_id)
        the.hear(task, "started", an_id("elsewhere"))
        the.hear(task, "ended", an_id("elsewhere"), status="failed")
        await asyncio.sleep(0.01)
        assert not execution.is_stopped
        assert the.ends() == []

    play(scene)


def test_an_end_by_the_dispatcher_stops_the_agent() -> None:
    async def scene(the: Scene) -> None:
        task = a_task()
        the.take(task)
        (execution,) = await the.running()
        ended = {"status": "unresponsive", "is_dispatchers": True}
        the.hear(task, "ended", execution.attempt.attempt_id, **ended)
        await the.until(the.ends)
        assert execution.is_stopped
        assert the.ends() == [("cancelled", "ended by the dispatcher: unresponsive", 0)]

    play(scene)


def test_the_next_attempt_waits_for_the_end_of_the_one_before_it() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task())
        (first,) = await the.running()
        the.take(a_task(attempt=2))
        await asyncio.sleep(0.01)
        assert len(the.executor.executions) == 1
        first.done("it failed")
        second = (await the.running(2))[1]
        assert second.attempt.number == 2
        assert second.attempt.attempt_id != first.attempt.attempt_id

    play(scene)


def test_a_deadline_ends_the_attempt_whether_the_agent_hears_or_not() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task(timeout_s=0.02))
        (execution,) = await the.running()
        await the.until(the.ends)
        assert the.ends() == [("timeout", "the agent did not end within 0.02 s", 0)]
        assert execution.is_abandoned
        assert the.runner.num_abandoned == 1
        # It does end, later: it counts no more, and nothing is said twice.
        execution.done(None)
        await the.until(lambda: the.runner.num_abandoned == 0)
        assert len(the.ends()) == 1

    play(scene, ScriptedExecutor(hears=False))


def test_too_many_that_do_not_end_fail_the_runner() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task("a", timeout_s=0.01), a_task("b", timeout_s=0.01))
        await the.runner.told_to_drain()
        assert isinstance(the.runner.failure, HeadraceError)
        assert "2 agents did not end" in str(the.runner.failure)

    play(scene, ScriptedExecutor(hears=False), max_abandoned=2)


def test_heartbeats_come_until_the_end() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task(heartbeat_timeout_s=0.15))
        (execution,) = await the.running()
        await the.until(lambda: len(the.outlet.records) >= 4)
        execution.done(None)
        await the.until(lambda: the.metrics.ends)
        kinds = [event.kind for event in the.outlet.of(AttemptEvent)]
        assert kinds == ["started", *["heartbeat"] * (len(kinds) - 2), "ended"]
        num_records = len(the.outlet.records)
        await asyncio.sleep(0.1)
        assert len(the.outlet.records) == num_records

    play(scene)


def test_an_agent_that_can_not_be_started_has_failed() -> None:
    async def scene(the: Scene) -> None:
        the.executor.error = RuntimeError("can't start new thread")
        the.take(a_task())
        await the.until(the.ends)
        (end,) = the.ends()
        assert end[0] == "failed"
        assert "can't start new thread" in (end[1] or "")

    play(scene)


@pytest.mark.parametrize("kind", ["started", "ended"])
def test_a_runner_whose_events_kafka_refuses_fails(kind: str) -> None:
    async def scene(the: Scene) -> None:
        def refuse(record: Record) -> Exception | None:
            is_it = isinstance(record, AttemptEvent) and record.kind == kind
            return DeliveryError(1, [("attempts", None, "fatal")]) if is_it else None

        the.outlet.refuse = refuse
        the.take(a_task())
        if kind == "ended":
            (execution,) = await the.running()
            execution.done(None)
        await the.runner.told_to_drain()
        assert isinstance(the.runner.failure, DeliveryError)
        assert the.num_free == 1

    play(scene)


def test_what_still_runs_at_the_end_is_ended_for_others_and_nothing_begins() -> None:
    async def scene(the: Scene) -> None:
        the.take(a_task("a"))
        (execution,) = await the.running()
        execution.attempt.take()
        the.runner.drain()
        assert not await the.runner.drained(0.01)
        the.runner.end_all()
        the.take(a_task("b"))
        assert await the.runner.drained(10)
        assert the.ends() == [("unresponsive", "the runner was stopped", 1)]
        assert the.num_free == 2
        assert the.started == [a_task("a").rollout_id]
        assert the.outlet.of(Reward) == []

    play(scene)
