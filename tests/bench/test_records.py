"""What benches publish is what they say: sizes, complete attempts, distinct ids."""

from collections import Counter
from itertools import islice

from tests.bench.records import EVENTS_PER_ATTEMPT, events, spans
from tests.builders import CODEC, logged

from headrace.schemas.records import Span, Trajectory
from headrace.streams.processors.assembler import Assembler
from headrace.streams.state import MemoryState


def test_spans_are_a_kilobyte_and_distinct() -> None:
    made = spans(2_000)
    sizes = [len(CODEC.encode(span, "topic")) for span in made[:200]]
    assert 950 <= min(sizes) <= max(sizes) <= 1100
    assert len({(span.attempt_id, span.sequence_id) for span in made}) == 2_000
    assert len({span.span_id for span in made}) == 2_000


def test_each_attempt_is_complete_and_accepted() -> None:
    made = list(events(150))
    assert len(made) == 150 * EVENTS_PER_ATTEMPT
    outputs = Assembler("headrace").handle(0, logged(list(made)), MemoryState())
    trajectories = [CODEC.decode(output.value, Trajectory) for output in outputs]
    assert len({trajectory.attempt_id for trajectory in trajectories}) == len(trajectories) == 150
    assert all(trajectory.accepted for trajectory in trajectories)
    assert {len(trajectory.transitions) for trajectory in trajectories} == {4}


def test_attempts_are_interleaved() -> None:
    beginning = Counter(event.attempt_id for event in islice(events(1_000), 640))
    assert len(beginning) >= 64
    assert max(beginning.values()) <= EVENTS_PER_ATTEMPT


def test_the_same_in_each_run() -> None:
    assert list(events(20)) == list(events(20))
    assert spans(50) == spans(50)


def test_calls_have_what_training_needs() -> None:
    calls = [event.generation for event in events(10) if isinstance(event, Span) and event.generation]
    assert len(calls) == 40
    assert [call.why_untrainable() for call in calls] == [None] * 40
