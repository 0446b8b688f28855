"""Events where others number them too, and word of each record."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from tests.builders import TIME
from tests.streams.runner.twins import MemoryOutlet, SharedSequencer, a_mailbox, an_attempt

from headrace.schemas.ids import uuid7
from headrace.schemas.records import Reward, Span
from headrace.streams.client.errors import PublisherFullError
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.attempt_requests import AttemptRequests
from headrace.streams.runner.context import attempt_context
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError, ProxyFailedError
from headrace.streams.runner.http_message import Response
from headrace.streams.runner.mailbox import Mailbox
from headrace.streams.runner.otel import HeadraceSpanProcessor


class Scene:
    def __init__(self) -> None:
        self.outlet = MemoryOutlet()
        self.sequencer = SharedSequencer()
        self.attempt = an_attempt(self.outlet, Mailbox(asyncio.get_running_loop()), sequencer=self.sequencer)

    def account(self) -> dict[int, str]:
        return {span.sequence_id: span.kind for span in self.outlet.of(Span)} | {
            reward.sequence_id: "reward" for reward in self.outlet.of(Reward)
        }


def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene(Scene())

    asyncio.run(main())


def a_span(attempt: Attempt) -> Callable[[int], Span]:
    return lambda sequence_id: Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=sequence_id,
        trace_id=attempt.trace_id,
        span_id="1" * 16,
        name="chat",
        start_time=TIME,
        end_time=TIME,
    )


# --- word of each record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("why_not", [None, "broken pipe"])
def test_who_publishes_hears_what_became_of_it(why_not: str | None) -> None:
    outlet = MemoryOutlet(is_held=True)
    heard: list[tuple[str | None, str | None]] = []
    with a_mailbox() as mailbox:
        attempt = an_attempt(outlet, mailbox)
        attempt.put(attempt.take(), a_span(attempt), lambda why: heard.append((why, attempt.failure)))
        assert heard == []
        outlet.settle(why_not)
    failure = None if why_not is None else "1 records were not acknowledged: broken pipe"
    assert heard == [(why_not, failure)]


def test_who_is_told_by_an_exception_hears_nothing() -> None:
    outlet = MemoryOutlet()
    outlet.refuse = lambda _: PublisherFullError("Kafka is away")
    with a_mailbox() as mailbox:
        attempt = an_attempt(outlet, mailbox)
        with pytest.raises(PublisherFullError):
            attempt.put(attempt.take(), a_span(attempt), lambda _: pytest.fail("told already"))


# --- ids that take a while -------------------------------------------------------------------------------


def test_closing_does_not_wait_for_an_id_but_the_last_acknowledgement_does() -> None:
    async def scene(the: Scene) -> None:
        the.sequencer.may_answer.clear()
        emitting = asyncio.create_task(asyncio.to_thread(the.attempt.emit_reward, 1.0))
        await asyncio.to_thread(the.sequencer.asked.wait)
        the.attempt.close()
        waiting = asyncio.create_task(the.attempt.acknowledged())
        await asyncio.wait([waiting], timeout=0.02)
        assert not waiting.done()
        the.sequencer.may_answer.set()
        await waiting
        assert the.account() == {1: "void"}
        with pytest.raises(AttemptClosedError):
            await emitting

    play(scene)


def test_others_emit_while_one_waits_for_an_id() -> None:
    async def scene(the: Scene) -> None:
        open_before = the.attempt.take()
        the.sequencer.asked.clear()
        the.sequencer.may_answer.clear()
        emitting = asyncio.create_task(asyncio.to_thread(the.attempt.emit_reward, 1.0))
        await asyncio.to_thread(the.sequencer.asked.wait)
        the.attempt.put(open_before, a_span(the.attempt))
        assert the.account() == {1: "internal"}
        the.sequencer.may_answer.set()
        assert await emitting == 2

    play(scene)


def test_an_id_that_does_not_come_is_a_failure_and_nothing_waits_for_it() -> None:
    async def scene(the: Scene) -> None:
        the.sequencer.failure = "the proxy is gone"
        with pytest.raises(ProxyFailedError):
            the.attempt.emit_span("look")
        await the.attempt.acknowledged()
        assert the.attempt.failure == "the proxy is gone"
        assert the.outlet.records == []

    play(scene)


def test_threads_that_emit_while_it_closes_leave_no_hole() -> None:
    async def scene(the: Scene) -> None:
        start = threading.Barrier(5)

        def emit() -> None:
            start.wait()
            try:
                for number in range(10_000):
                    the.attempt.emit_reward(number)
            except AttemptClosedError:
                return

        threads = [threading.Thread(target=emit) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(start.wait)
        while len(the.outlet.records) < 50:  # noqa: ASYNC110  the others are threads
            await asyncio.sleep(0)
        the.attempt.close()
        await the.attempt.acknowledged()
        assert sorted(the.account()) == list(range(1, the.sequencer.last + 1))
        for thread in threads:
            thread.join()

    play(scene)


# --- calls that others numbered --------------------------------------------------------------------------


def test_a_reward_may_be_about_a_call_that_was_numbered_elsewhere() -> None:
    async def scene(the: Scene) -> None:
        elsewhere = the.sequencer.take_elsewhere()
        assert the.attempt.emit_reward(0.5, about=elsewhere) == 2
        for about in (0, -1):
            with pytest.raises(InvalidRewardError):
                the.attempt.emit_reward(0.5, about=about)
        assert the.sequencer.last == 2

    play(scene)


def test_a_reward_about_a_call_that_was_not_made_is_void() -> None:
    async def scene(the: Scene) -> None:
        with pytest.raises(InvalidRewardError, match="about sequence id 7, and 0 is the last"):
            the.attempt.emit_reward(0.5, about=7)
        assert the.account() == {1: "void"}

    play(scene)


# --- over HTTP, and from OpenTelemetry -------------------------------------------------------------------


def test_a_request_waits_for_its_id_without_the_loop() -> None:
    async def scene(the: Scene) -> None:
        requests = AttemptRequests(the.attempt)
        the.sequencer.may_answer.clear()
        posting = asyncio.create_task(requests.reward(b'{"value": 1}'))
        await asyncio.to_thread(the.sequencer.asked.wait)
        await asyncio.wait([posting], timeout=0.02)
        assert not posting.done()
        the.sequencer.may_answer.set()
        assert (await posting).status == 200

    play(scene)


@pytest.mark.parametrize("what", ["reward", "traces"])
def test_a_request_without_an_id_is_refused(what: str) -> None:
    async def scene(the: Scene) -> None:
        the.sequencer.failure = "the proxy is gone"
        requests = AttemptRequests(the.attempt)
        if what == "reward":
            answer = await requests.reward(b'{"value": 1}')
        else:
            answer = await requests.traces(b"{", "application/json; charset=utf-8")
        assert (answer.status, answer.headers) == (503, (("retry-after", "1"),))

    play(scene)


def test_a_span_without_an_id_does_not_disturb_the_code_that_made_it() -> None:
    async def scene(the: Scene) -> None:
        provider = TracerProvider()
        provider.add_span_processor(HeadraceSpanProcessor())
        the.sequencer.failure = "the proxy is gone"
        with attempt_context(the.attempt), provider.get_tracer("test").start_as_current_span("chat"):
            pass
        assert the.outlet.records == []
        provider.shutdown()

    play(scene)


# --- what was lost ---------------------------------------------------------------------------------------


def test_a_void_that_can_not_be_published_is_a_failure_of_the_attempt() -> None:
    outlet = MemoryOutlet()
    with a_mailbox() as mailbox:
        attempt = an_attempt(outlet, mailbox)
        assert attempt.void(attempt.take()) is None
        assert attempt.void(attempt.take()) is None
        lost = attempt.take()
        outlet.refuse = lambda _: PublisherFullError("Kafka is away")
        assert attempt.void(lost) == "Kafka is away"
        assert attempt.failure == "1 records were not acknowledged: Kafka is away"
        assert attempt.void(lost) is None
        assert [span.sequence_id for span in outlet.of(Span)] == [1, 2]


def test_what_is_open_at_the_end_and_can_not_be_voided_is_a_failure_too() -> None:
    outlet = MemoryOutlet()
    with a_mailbox() as mailbox:
        attempt = an_attempt(outlet, mailbox)
        attempt.take()
        outlet.refuse = lambda _: PublisherFullError("Kafka is away")
        assert attempt.close() == 1
        assert attempt.failure == "1 records were not acknowledged: Kafka is away"


async def lose_one(outlet: MemoryOutlet, request: Coroutine[Any, Any, Response]) -> Response:
    outlet.is_held = True
    asking = asyncio.ensure_future(request)
    while not outlet._waiting:  # noqa: ASYNC110  the twin knows no events
        await asyncio.sleep(0)
    outlet.is_held = False
    outlet.settle("broker gone")
    return await asking


def test_what_was_lost_before_is_no_fault_of_the_next_request() -> None:
    async def scene(the: Scene) -> None:
        requests = AttemptRequests(the.attempt)
        lost = await lose_one(the.outlet, requests.reward(b'{"value": 1}'))
        assert lost.status == 503
        assert (await requests.reward(b'{"value": 2}')).status == 200
        assert (await requests.traces(b"{}", "application/json")).status == 200
        assert the.attempt.failure == "1 records were not acknowledged: broker gone"

    play(scene)


def test_a_reward_that_was_lost_is_recorded_when_it_comes_again() -> None:
    async def scene(the: Scene) -> None:
        requests = AttemptRequests(the.attempt)
        body = json.dumps({"value": 1, "reward_id": uuid7()}).encode()
        assert (await lose_one(the.outlet, requests.reward(body))).status == 503
        before = len(the.outlet.of(Reward))
        assert (await requests.reward(body)).status == 200
        assert len(the.outlet.of(Reward)) == before + 1
        assert (await requests.reward(body)).status == 200
        assert len(the.outlet.of(Reward)) == before + 1

    play(scene)


TRACES = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "1" * 32,
                            "spanId": "2" * 16,
                            "name": "tool",
                            "startTimeUnixNano": "1",
                            "endTimeUnixNano": "2",
                        }
                    ]
                }
            ]
        }
    ]
}


def test_traces_that_were_lost_are_not_said_to_be_there_when_they_come_again() -> None:
    async def scene(the: Scene) -> None:
        requests = AttemptRequests(the.attempt)
        body = json.dumps(TRACES).encode()
        lost = await lose_one(the.outlet, requests.traces(body, "application/json"))
        assert lost.status == 503
        assert (await requests.traces(body, "application/json")).status == 503
        other = json.dumps(TRACES).replace("2" * 16, "3" * 16).encode()
        assert (await requests.traces(other, "application/json")).status == 200

    play(scene)
