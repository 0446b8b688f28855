"""The runner in memory, with a proxy that numbers events: whatever that does, attempts end with the truth."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr
from tests.streams.runner import scene as scenes
from tests.streams.runner.fake_proxy import KEY, LOST, FakeProxy, Fault, a_fake_proxy
from tests.streams.runner.scene import Scene, ScriptedExecutor
from tests.streams.runner.twins import a_task

from headrace.schemas.records import AttemptEvent, Reward, Span
from headrace.streams.runner import proxy_sequencer
from headrace.streams.runner.errors import ProxyFailedError
from headrace.streams.runner.proxy_client import ProxyClient
from headrace.streams.runner.proxy_sequencer import Patience, RemoteSequencer

PATIENCE = Patience(next_s=0.2, open_s=0.2, kafka_s=10)
Play = Callable[[Scene, FakeProxy], Awaitable[None]]


def play(
    scene: Play, executor: ScriptedExecutor | None = None, patience: Patience = PATIENCE, **options: Any
) -> None:
    async def main() -> None:
        with a_fake_proxy() as proxy:
            async with ProxyClient(proxy.url, SecretStr(KEY), timeout_s=5) as client:
                await scenes.act(
                    lambda the: scene(the, proxy),
                    executor,
                    new_sequencer=lambda: RemoteSequencer(client, patience),
                    **options,
                )

    asyncio.run(main())


def account(the: Scene) -> dict[int, str]:
    """What each sequence id came to."""
    spans = {span.sequence_id: span.kind for span in the.outlet.of(Span)}
    return spans | {reward.sequence_id: "reward" for reward in the.outlet.of(Reward)}


def test_agents_get_the_proxy_and_a_token_and_the_end_counts_all_ids() -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task())
        (execution,) = await the.running()
        attempt = execution.attempt
        known = proxy.attempts[attempt.attempt_id]
        assert known.rollout_id == attempt.rollout_id
        assert (attempt.base_url, attempt.api_key) == (
            f"{proxy.url}/a/{attempt.attempt_id}/v1",
            known.token,
        )
        known.last += 2  # the agent's model calls
        await asyncio.to_thread(attempt.emit_span, "tool")
        known.last += 1
        await asyncio.to_thread(attempt.emit_reward, 1.0, about=2)
        left_open = await asyncio.to_thread(attempt.take)
        known.last += 1
        execution.done(None)
        await the.until(lambda: the.metrics.ends)
        assert account(the) == {3: "internal", 5: "reward", left_open: "void"}
        assert the.ends() == [("succeeded", None, 7)]
        assert known.is_closed

    play(scene)


def test_an_agent_begins_when_the_log_has_its_start_and_the_proxy_knows_it() -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        proxy.always["open"] = Fault(429)
        the.take(a_task())
        await the.until(lambda: the.outlet.records)
        await asyncio.sleep(0.02)
        assert proxy.requests == []
        the.outlet.settle()
        await the.until(lambda: proxy.count("open") > 1)
        assert the.executor.executions == []
        proxy.always.clear()
        (execution,) = await the.running()
        assert execution.attempt.attempt_id in proxy.attempts

    play(scene, patience=Patience(), is_held=True)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param(Fault(401), "refuses the runner", id="a wrong key"),
        pytest.param(Fault(429), "takes no more for now", id="full"),
        pytest.param(Fault(500), "answered 500", id="broken"),
        pytest.param(LOST, "gave no answer", id="no answer"),
    ],
)
def test_an_attempt_that_can_not_be_opened_has_failed_and_the_next_goes_on(fault: Fault, words: str) -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        proxy.always["open"] = fault
        the.take(a_task("a"))
        await the.until(the.ends)
        ((status, error, last),) = the.ends()
        assert (status, last) == ("failed", 0)
        assert words in (error or "")
        assert the.executor.executions == []
        assert all(attempt.is_closed for attempt in proxy.attempts.values())
        proxy.always.clear()
        the.take(a_task("b"))
        await the.running()
        assert the.runner.failure is None

    play(scene)


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
def test_what_ends_while_it_is_opened_does_not_begin(how: str) -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        proxy.always["open"] = Fault(429)
        task = a_task(timeout_s=0.1) if how == "timeout" else a_task()
        the.take(task)
        await the.until(lambda: proxy.count("open"))
        if how == "cancelled":
            (life,) = the.runner.runs_here.values()
            the.hear(task, "ended", life.attempt.attempt_id, status="cancelled", is_dispatchers=True)
        await the.until(the.ends)
        assert [(status, last) for status, _, last in the.ends()] == [(how, 0)]
        assert the.executor.executions == []

    play(scene, patience=Patience())


@pytest.mark.parametrize("how", ["timeout", "cancelled", "failed", "unresponsive"])
def test_every_end_closes_it(how: str) -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        task = a_task(timeout_s=0.2 if how == "timeout" else 60)
        the.take(task)
        (execution,) = await the.running()
        attempt_id = execution.attempt.attempt_id
        await asyncio.to_thread(execution.attempt.take)
        proxy.attempts[attempt_id].last += 1
        if how == "cancelled":
            the.hear(task, "ended", attempt_id, status="cancelled", is_dispatchers=True)
        elif how == "failed":
            execution.done("as it wants")
        elif how == "unresponsive":
            the.runner.end_all()
        await the.until(the.ends)
        assert [(status, last) for status, _, last in the.ends()] == [(how, 2)]
        assert account(the) == {1: "void"}
        assert proxy.attempts[attempt_id].is_closed

    play(scene)


def test_what_the_proxy_could_not_record_is_a_failure() -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task())
        (execution,) = await the.running()
        proxy.attempts[execution.attempt.attempt_id].failure = "2 records were not acknowledged: too old"
        execution.done(None)
        await the.until(the.ends)
        assert the.ends() == [("failed", "2 records were not acknowledged: too old", 0)]

    play(scene)


def test_a_proxy_that_waits_for_kafka_is_waited_for() -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task(heartbeat_timeout_s=0.15))
        (execution,) = await the.running()
        proxy.always["close"] = Fault(503)
        execution.done(None)
        num_before = len(the.outlet.of(AttemptEvent))
        await the.until(lambda: len(the.outlet.of(AttemptEvent)) > num_before + 2)
        assert the.ends() == []
        proxy.always.clear()
        await the.until(the.ends)
        assert the.ends() == [("succeeded", None, 0)]

    play(scene)


@pytest.mark.parametrize("comes_back", [False, True], ids=["away", "restarted"])
def test_a_proxy_that_is_lost_fails_its_attempts_and_the_next_goes_on(comes_back: bool) -> None:  # noqa: FBT001
    """Never finished with holes unnoticed: an agent that saw nothing of it says that all is well."""

    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task("a"))
        (execution,) = await the.running()
        proxy.attempts[execution.attempt.attempt_id].last += 3
        await asyncio.to_thread(proxy.kill)
        if comes_back:
            proxy.start()
        execution.done(None)
        await the.until(the.ends)
        why = proxy_sequencer.RESTARTED if comes_back else proxy_sequencer.LOST
        assert the.ends() == [("failed", why, None)]
        if not comes_back:
            proxy.start()
        the.take(a_task("b"))
        (_, second) = await the.running(2)
        second.done(None)
        await the.until(lambda: len(the.ends()) == 2)
        assert the.ends()[1] == ("succeeded", None, 0)
        assert the.runner.failure is None

    play(scene)


@pytest.mark.parametrize(
    ("fault", "why", "last"),
    [
        pytest.param(LOST, proxy_sequencer.NO_ANSWER, 1, id="an answer that is lost"),
        pytest.param(Fault(404), proxy_sequencer.RESTARTED, 0, id="unknown"),
        pytest.param(Fault(410), proxy_sequencer.CLOSED_EARLY, 0, id="closed"),
        pytest.param(Fault(500), "the proxy answered 500", 0, id="broken"),
    ],
)
def test_an_agent_that_swallows_a_lost_event_has_failed_all_the_same(
    fault: Fault, why: str, last: int
) -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task())
        (execution,) = await the.running()
        proxy.faults["next"].append(fault)
        with pytest.raises(ProxyFailedError):
            await asyncio.to_thread(execution.attempt.emit_reward, 1.0)
        execution.done(None)
        await the.until(the.ends)
        assert the.ends() == [("failed", why, last)]
        assert account(the) == {}

    play(scene)


def test_an_id_that_comes_after_the_end_is_void_before_the_end_is_said() -> None:
    """A thread that outlives its attempt asks for an id while that is closed."""

    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(a_task())
        (execution,) = await the.running()
        asked, answered = threading.Event(), threading.Event()
        hold_back(execution.attempt, asked, answered)
        emitting = asyncio.create_task(asyncio.to_thread(execution.attempt.emit_span, "late"))
        await asyncio.to_thread(asked.wait)
        execution.done(None)
        await the.until(lambda: proxy.attempts[execution.attempt.attempt_id].is_closed)
        await asyncio.sleep(0.01)
        assert the.ends() == []
        answered.set()
        await the.until(the.ends)
        with pytest.raises(Exception, match="has ended"):
            await emitting
        assert the.ends() == [("succeeded", None, 1)]
        assert [type(each).__name__ for each in the.outlet.records[-2:]] == ["Span", "AttemptEvent"]
        assert account(the) == {1: "void"}

    play(scene)


def hold_back(attempt: Any, asked: threading.Event, answered: threading.Event) -> None:
    """Ids reach the one who asked for them when `answered` is set."""
    sequencer = attempt._sequencer
    take = sequencer.next

    def late() -> int:
        sequence_id: int = take()
        asked.set()
        answered.wait()
        return sequence_id

    sequencer.next = late


def test_many_at_once() -> None:
    async def scene(the: Scene, proxy: FakeProxy) -> None:
        the.take(*(a_task(f"t{number}") for number in range(40)))
        executions = await the.running(40)

        def work(attempt: Any) -> None:
            for number in range(5):
                attempt.emit_reward(number)

        await asyncio.gather(*(asyncio.to_thread(work, each.attempt) for each in executions))
        for each in executions:
            each.done(None)
        await the.until(lambda: len(the.metrics.ends) == 40)
        assert the.ends() == [("succeeded", None, 5)] * 40
        assert all(attempt.is_closed for attempt in proxy.attempts.values())

    play(scene)
