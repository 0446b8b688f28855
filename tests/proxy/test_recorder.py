"""The recorder: word of when Kafka has a call's spans, and what happens if it does not take them (G1)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.builders import Attempt
from tests.proxy.harness import let_others_run, until
from tests.streams.runner.twins import MemoryOutlet

from headrace.proxy import recorder as recorder_module
from headrace.proxy.recorder import Recorder, UnrecordedError
from headrace.schemas.errors import FatalError
from headrace.schemas.records import Record, Span
from headrace.streams.client.errors import PublisherFullError, RecordTooLargeError
from headrace.streams.runner.mailbox import Mailbox

ATTEMPT = Attempt()
TWO = [ATTEMPT.call(1), ATTEMPT.call(2)]


class Lost:
    """An attempt, as the recorder knows one."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def void_span(self, sequence_id: int) -> Span:
        return ATTEMPT.span(sequence_id, kind="void")

    def note_lost(self, why: str) -> None:
        self.notes.append(why)


class FullOutlet(MemoryOutlet):
    is_full = True

    def has_room(self) -> bool:
        return not self.is_full


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "_RETRY_S", 0.001)


@asynccontextmanager
async def a_recorder(
    outlet: MemoryOutlet, failures: list[FatalError] | None = None, late_s: float = 60
) -> AsyncIterator[Recorder]:
    heard = failures if failures is not None else []
    mailbox = Mailbox(asyncio.get_running_loop())
    made = Recorder(outlet, mailbox, late_s=late_s, failed=heard.append)
    yield made
    await made.close()


def ids_of(outlet: MemoryOutlet) -> list[tuple[int, str]]:
    return [(span.sequence_id or 0, span.kind) for span in outlet.of(Span)]


async def test_it_waits_for_all() -> None:
    outlet, lost = MemoryOutlet(is_held=True), Lost()
    async with a_recorder(outlet) as recorder:
        recording = asyncio.ensure_future(recorder.record(TWO, lost))
        await until(lambda: recorder.num_pending == 2)
        await let_others_run()
        assert not recording.done()
        outlet.settle()
        await recording
        assert (recorder.num_pending, recorder.trouble(), lost.notes) == (0, None, [])


async def test_what_is_not_taken_is_void_and_stops_all_calls_till_kafka_has_that() -> None:
    outlet, lost = MemoryOutlet(is_held=True), Lost()
    async with a_recorder(outlet) as recorder:
        recording = asyncio.ensure_future(recorder.record(TWO, lost))
        await until(lambda: len(outlet.records) == 2)
        outlet.settle("broker gone")
        with pytest.raises(UnrecordedError, match="broker gone"):
            await recording
        assert lost.notes == ["the record of a call was not acknowledged: broker gone"]
        for _ in range(3):
            # Tried again and again, one void for each id.
            await until(lambda: recorder.num_pending == 2)
            trouble = recorder.trouble()
            assert trouble is not None
            assert (trouble.status, trouble.code, trouble.retry_after_s) == (503, "kafka_unavailable", 2)
            outlet.settle("still gone")
            await until(lambda: recorder.num_pending == 0)
        outlet.is_held = False
        await until(lambda: recorder.trouble() is None)
        assert ids_of(outlet)[-2:] == [(1, "void"), (2, "void")]


async def test_only_what_was_lost_is_void() -> None:
    outlet, lost = MemoryOutlet(), Lost()
    outlet.refuse = lambda record: PublisherFullError("full") if record == TWO[1] else None
    async with a_recorder(outlet) as recorder:
        with pytest.raises(UnrecordedError, match="full"):
            await recorder.record(TWO, lost)
        await until(lambda: recorder.trouble() is None)
        assert ids_of(outlet) == [(1, "client"), (2, "void")]


async def test_a_full_buffer_is_not_waited_for() -> None:
    outlet, lost = FullOutlet(), Lost()
    async with a_recorder(outlet) as recorder:
        with pytest.raises(UnrecordedError, match="buffer of records for Kafka is full"):
            await recorder.record(TWO[:1], lost)
        assert recorder.trouble() is not None
        outlet.is_full = False
        await until(lambda: recorder.trouble() is None)
        assert ids_of(outlet) == [(1, "void")]


async def test_a_late_acknowledgement_is_trouble_while_it_lasts() -> None:
    outlet = MemoryOutlet(is_held=True)
    async with a_recorder(outlet, late_s=0.01) as recorder:
        recording = asyncio.ensure_future(recorder.record(TWO, Lost()))
        await until(lambda: recorder.trouble() is not None)
        outlet.settle()
        await recording
        assert recorder.trouble() is None


async def test_words_that_are_too_large_are_left_out() -> None:
    outlet, lost = MemoryOutlet(), Lost()

    def refuse(record: Record) -> Exception | None:
        assert isinstance(record, Span)
        assert record.generation is not None
        return RecordTooLargeError("9 MiB") if record.generation.request else None

    outlet.refuse = refuse
    async with a_recorder(outlet) as recorder:
        await recorder.record([ATTEMPT.call(1, request="words")], lost)
    (span,) = outlet.of(Span)
    assert (span.generation.request, span.generation.response) == ("", "")
    assert span.generation.response_token_ids == (3, 4)
    assert span.attributes["headrace.left_out"] == "request,response: too large"


async def test_ids_that_are_too_large_are_a_loss() -> None:
    outlet, lost = MemoryOutlet(), Lost()
    outlet.refuse = lambda record: (
        RecordTooLargeError("9 MiB") if isinstance(record, Span) and record.generation else None
    )
    async with a_recorder(outlet) as recorder:
        with pytest.raises(UnrecordedError, match="9 MiB"):
            await recorder.record(TWO[:1], lost)
        await until(lambda: recorder.trouble() is None)
    assert ids_of(outlet) == [(1, "void")]
    assert lost.notes


async def test_a_producer_that_can_t_go_on_is_told_of() -> None:
    outlet, failures = MemoryOutlet(), list[FatalError]()
    outlet.refuse = lambda _: FatalError("start a new one")
    async with a_recorder(outlet, failures) as recorder:
        with pytest.raises(UnrecordedError, match="start a new one"):
            await recorder.record(TWO, Lost())
        assert {str(failure) for failure in failures} == {"start a new one"}
        assert recorder.trouble() is not None


async def test_a_producer_that_can_t_go_on_with_what_is_left_of_a_record_is_told_of_too() -> None:
    outlet, failures = MemoryOutlet(), list[FatalError]()

    def refuse(record: Record) -> Exception | None:
        assert isinstance(record, Span)
        has_words = record.generation is not None and bool(record.generation.request)
        return RecordTooLargeError("9 MiB") if has_words else FatalError("start a new one")

    outlet.refuse = refuse
    async with a_recorder(outlet, failures) as recorder:
        with pytest.raises(UnrecordedError, match="start a new one"):
            await recorder.record([ATTEMPT.call(1, request="words")], Lost())
        assert failures
        assert {str(failure) for failure in failures} == {"start a new one"}


async def test_a_full_buffer_is_trouble_before_anything_is_lost() -> None:
    outlet = FullOutlet()
    async with a_recorder(outlet) as recorder:
        trouble = recorder.trouble()
        assert trouble is not None
        assert trouble.code == "kafka_unavailable"
        outlet.is_full = False
        assert recorder.trouble() is None
