"""Which attempt runs here."""

import asyncio
import threading

import pytest
from tests.streams.runner.twins import MemoryOutlet, a_mailbox, an_attempt

from headrace.schemas.records import Reward, Span
from headrace.streams.runner import NoAttemptError, current_attempt, emit_reward, emit_span, span
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.context import attempt_context


@pytest.mark.parametrize("call", [current_attempt, lambda: emit_reward(1.0), lambda: emit_span("s")])
def test_outside_of_an_attempt_there_is_none(call: object) -> None:
    assert callable(call)
    with pytest.raises(NoAttemptError, match="headrace runner"):
        call()


def test_within_one_events_are_its_own(attempt: Attempt, outlet: MemoryOutlet) -> None:
    with attempt_context(attempt):
        assert current_attempt() is attempt
        with span("look", attributes={"a": 1}):
            emit_span("leaf", attributes={"b": 2})
        emit_reward(0.5, about=1)
    assert [record.sequence_id for record in outlet.of(Span)] == [2, 1]
    assert outlet.of(Reward)[0].about_sequence_id == 1
    with pytest.raises(NoAttemptError):
        current_attempt()


def test_many_at_once_each_see_their_own(outlet: MemoryOutlet) -> None:
    async def agent(attempt: Attempt, others: asyncio.Barrier) -> str:
        with attempt_context(attempt):
            await others.wait()
            in_thread = await asyncio.to_thread(lambda: current_attempt().attempt_id)
            in_task = await asyncio.create_task(asyncio.sleep(0, current_attempt().attempt_id))
            await others.wait()
            assert in_thread == in_task
            return in_thread

    async def main() -> None:
        barrier = asyncio.Barrier(20)
        with a_mailbox() as mailbox:
            attempts = [an_attempt(outlet, mailbox, name=str(number)) for number in range(20)]
        seen = await asyncio.gather(*(agent(attempt, barrier) for attempt in attempts))
        assert seen == [attempt.attempt_id for attempt in attempts]

    asyncio.run(main())


def test_a_thread_of_the_agent_s_own_has_none(attempt: Attempt) -> None:
    seen: list[str] = []

    def look() -> None:
        try:
            current_attempt()
        except NoAttemptError:
            seen.append("none")

    with attempt_context(attempt):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == ["none"]
