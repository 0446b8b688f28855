"""Events from within an attempt: numbered without holes, or with one where it is the truth (G2, G3)."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from tests.streams.runner.twins import MemoryOutlet, a_mailbox, an_attempt

from headrace.schemas.errors import BadRecordError
from headrace.schemas.records import Generation, Record, Reward, Span
from headrace.streams.client.errors import PublisherFullError, RecordTooLargeError
from headrace.streams.runner.attempt import Attempt
from headrace.streams.runner.errors import AttemptClosedError, InvalidRewardError
from headrace.streams.runner.mailbox import Mailbox


def account(outlet: MemoryOutlet) -> dict[int | None, str]:
    """What each sequence id came to."""
    return {
        record.sequence_id: "reward" if isinstance(record, Reward) else record.kind
        for record in outlet.of(Span | Reward)  # type: ignore[arg-type]
    }


def test_events_take_ids_in_their_order(attempt: Attempt, outlet: MemoryOutlet) -> None:
    assert attempt.emit_span("look", attributes={"n": 3, "ok": True, "tags": ("a", "b")}) == 1
    assert attempt.emit_reward(0.5, "style", about=1) == 2
    assert attempt.emit_reward(1) == 3
    assert attempt.close() == 3
    span, style, outcome = outlet.records
    assert isinstance(span, Span)
    assert span.attributes == {"n": "3", "ok": "true", "tags": '["a","b"]'}
    assert span.trace_id == attempt.attempt_id.replace("-", "")
    assert isinstance(style, Reward)
    assert (style.name, style.value, style.about_sequence_id, style.sequence_id) == ("style", 0.5, 1, 2)
    assert isinstance(outcome, Reward)
    assert (outcome.name, outcome.value, outcome.sequence_id) == ("outcome", 1.0, 3)
    assert {record.key for record in outlet.records} == {attempt.rollout_id.encode()}


def test_a_span_takes_its_id_when_it_begins(attempt: Attempt, outlet: MemoryOutlet) -> None:
    with attempt.span("outer", attributes={"a": 1}) as outer:
        with attempt.span("inner", kind="client") as inner:
            inner.generation = Generation(agent="solver")
        outer.attributes["b"] = 2
        attempt.emit_span("leaf")
    first, second, third = sorted(outlet.of(Span), key=lambda span: span.sequence_id)
    assert [first.name, second.name, third.name] == ["outer", "inner", "leaf"]
    assert second.parent_span_id == third.parent_span_id == first.span_id == outer.span_id
    assert first.parent_span_id == ""
    assert first.attributes == {"a": "1", "b": "2"}
    assert second.generation == Generation(agent="solver")
    assert second.kind == "client"


def test_an_exception_within_a_span_is_its_status(attempt: Attempt, outlet: MemoryOutlet) -> None:
    with pytest.raises(KeyError), attempt.span("look"):
        raise KeyError("secret")
    (span,) = outlet.of(Span)
    assert (span.status, span.status_message) == ("error", "KeyError")


@pytest.mark.parametrize(
    "emit",
    [
        pytest.param(lambda attempt: attempt.emit_reward(math.nan), id="NaN"),
        pytest.param(lambda attempt: attempt.emit_reward("1"), id="text"),
        pytest.param(lambda attempt: attempt.emit_reward(1, about=1), id="about what was not"),
        pytest.param(lambda attempt: attempt.emit_reward(1, about=0), id="about nothing"),
    ],
)
def test_a_reward_that_is_refused_takes_no_id(
    attempt: Attempt, outlet: MemoryOutlet, emit: Callable[[Attempt], int]
) -> None:
    with pytest.raises(InvalidRewardError):
        emit(attempt)
    assert attempt.close() == 0
    assert outlet.records == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        pytest.param({"kind": "unknown"}, ValidationError, id="a field that is wrong"),
        pytest.param({"generation": 3}, ValidationError, id="a generation that is none"),
        pytest.param({"status_message": "\ud83d"}, BadRecordError, id="text that Avro can't hold"),
    ],
)
def test_an_id_that_came_to_nothing_is_void(
    attempt: Attempt, outlet: MemoryOutlet, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        attempt.emit_span("bad", **fields)
    attempt.emit_reward(1.0)
    assert attempt.close() == 2
    assert account(outlet) == {1: "void", 2: "reward"}


@pytest.mark.parametrize("error", [RecordTooLargeError("9 MiB"), PublisherFullError("Kafka is away")])
def test_what_happened_and_could_not_be_recorded_leaves_a_hole(
    attempt: Attempt, outlet: MemoryOutlet, error: Exception
) -> None:
    def refuse(record: Record) -> Exception | None:
        return error if isinstance(record, Span) and record.name == "big" else None

    outlet.refuse = refuse
    with pytest.raises(type(error)):
        attempt.emit_span("big")
    attempt.emit_reward(1.0)
    assert attempt.close() == 2
    assert account(outlet) == {2: "reward"}


def test_ids_that_are_open_at_the_end_are_void(attempt: Attempt, outlet: MemoryOutlet) -> None:
    first, second = attempt.take(), attempt.take()
    attempt.emit_reward(1.0)
    attempt.lose(second)
    assert attempt.close() == 3
    assert attempt.close() == 3
    assert account(outlet) == {1: "void", 3: "reward"}
    with pytest.raises(AttemptClosedError):
        attempt.put(first, lambda _: pytest.fail("it is settled"))


def test_a_closed_attempt_takes_no_more(attempt: Attempt, outlet: MemoryOutlet) -> None:
    context = attempt.span("open")
    context.__enter__()
    assert attempt.close() == 1
    emits: list[Callable[[], int]] = [
        lambda: attempt.emit_reward(1.0),
        lambda: attempt.emit_span("late"),
        attempt.take,
    ]
    for emit in emits:
        with pytest.raises(AttemptClosedError, match=attempt.attempt_id):
            emit()
    with pytest.raises(AttemptClosedError):
        context.__exit__(None, None, None)
    assert account(outlet) == {1: "void"}


def test_threads_that_emit_while_it_closes_leave_no_hole(attempt: Attempt, outlet: MemoryOutlet) -> None:
    start = threading.Barrier(5)

    def emit() -> None:
        start.wait()
        try:
            for number in range(10_000):
                attempt.emit_reward(number) if number % 2 else attempt.emit_span("look")
        except AttemptClosedError:
            return

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while len(outlet.records) < 50:
        pass
    last = attempt.close()
    for thread in threads:
        thread.join()
    ids = [record.sequence_id for record in outlet.of(Span | Reward)]  # type: ignore[arg-type]
    assert sorted(ids) == list(range(1, last + 1))


def test_it_waits_for_acknowledgements_and_tells_of_failures() -> None:
    async def main() -> None:
        outlet = MemoryOutlet(is_held=True)
        attempt = an_attempt(outlet, Mailbox(asyncio.get_running_loop()))
        await attempt.acknowledged()
        attempt.emit_span("look")
        attempt.emit_reward(1.0)
        waiting = asyncio.create_task(attempt.acknowledged())
        await asyncio.sleep(0)
        assert not waiting.done()
        outlet.settle()
        await waiting
        assert attempt.failure is None
        attempt.emit_span("lost")
        outlet.settle("broken pipe")
        await attempt.acknowledged()
        assert attempt.failure == "1 records were not acknowledged: broken pipe"

    asyncio.run(main())


def test_a_task_that_is_no_json_says_so_when_it_is_read(outlet: MemoryOutlet) -> None:
    with a_mailbox() as mailbox:
        attempt = an_attempt(outlet, mailbox, task="no")
    with pytest.raises(ValueError, match="Expecting value"):
        _ = attempt.task
