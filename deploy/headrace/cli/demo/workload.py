"""A generated stream of attempts, disorderly as real ones are, of which the right outcome is known.

What should come of each attempt is written down as it is made, not computed by the code under show.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import (
    AttemptEvent,
    AttemptOrigin,
    Generation,
    Record,
    Reward,
    Span,
)

MODEL = "tiny-policy"
GROUP_SIZE = 4
_KINDS = {
    "complete": 80,
    "incomplete": 6,
    "failed": 5,
    "timeout": 3,
    "no_outcome": 3,
    "untrainable": 3,
}
_REASONS = {
    "complete": None,
    "incomplete": "missing_sequence_ids",
    "failed": "attempt_failed",
    "timeout": "attempt_timeout",
    "no_outcome": "no_outcome_reward",
    "untrainable": "no_trainable_calls",
}


@dataclass(frozen=True)
class ExpectedTransition:
    """What one model call must look like in the end."""

    sequence_id: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...]
    reward: float | None


@dataclass
class ExpectedAttempt:
    """What must be said of an attempt in the end. `reason` None: accepted."""

    attempt_id: str
    reason: str | None
    transitions: list[ExpectedTransition] = field(default_factory=list)


@dataclass(frozen=True)
class Poison:
    """Bytes that are no record, under the key of some rollout."""

    key: bytes
    value: bytes


@dataclass
class Workload:
    """Everything to publish, in the order of publishing."""

    items: list[Record | Poison]
    expected: dict[str, ExpectedAttempt]
    span_ids: set[tuple[str, str]]
    reward_ids: set[str]


class _Maker:
    """Makes one attempt: its events in order, and what must come of them."""

    def __init__(self, rng: random.Random, number: int, kind: str, start: datetime, grace_s: float) -> None:
        self.rng = rng
        time_ms = int(start.timestamp() * 1000)
        group = number // GROUP_SIZE
        self.rollout_id = derived_uuid7(time_ms, "demo", "rollout", str(number))
        self.attempt_id = derived_uuid7(time_ms, "demo", "attempt", str(number))
        self.kind = kind
        self.time = start
        self.origin = AttemptOrigin(
            group_id=f"demo-group-{group}",
            group_size=GROUP_SIZE,
            task_id=f"task-{group % 25}",
            credit_rule=rng.choice(("outcome@1", "per_step@1")),
            reward_grace_s=grace_s,
        )
        self.next_id = 1
        self.events: list[Record] = []
        self.calls: list[tuple[int, Generation]] = []

    def make(self) -> ExpectedAttempt:
        self.events.append(self._event("started", "running"))
        prompt = tuple(self.rng.choices(range(384), k=self.rng.randint(8, 24)))
        for turn in range(self.rng.randint(1, 4)):
            response = self._call(prompt, turn)
            if self.rng.random() < 0.5:
                self._tool()
            if self.rng.random() < 0.1:
                self._void()
            prompt = prompt + response + tuple(self.rng.choices(range(384), k=self.rng.randint(2, 6)))
        hole = self._hole() if self.kind == "incomplete" else None
        outcome = None
        if self.kind in {"complete", "incomplete", "untrainable"}:
            outcome = round(self.rng.random(), 3)
            self.events.append(self._reward(outcome))
        status = {"failed": "failed", "timeout": "timeout"}.get(self.kind, "succeeded")
        self.events.append(self._event("ended", status))
        if self.kind == "timeout" and self.rng.random() < 0.5:
            self.events.append(self._event("ended", "succeeded"))  # late: the first end counts
        return self._expected(outcome, hole)

    def _expected(self, outcome: float | None, hole: int | None) -> ExpectedAttempt:
        calls = [(sequence_id, call) for sequence_id, call in self.calls if sequence_id != hole]
        expected = ExpectedAttempt(self.attempt_id, _REASONS[self.kind])
        for index, (sequence_id, call) in enumerate(calls):
            is_last = index == len(calls) - 1
            credited = outcome if self.origin.credit_rule == "outcome@1" or is_last else None
            expected.transitions.append(
                ExpectedTransition(
                    sequence_id,
                    call.prompt_token_ids,
                    call.response_token_ids,
                    call.response_logprobs,
                    credited,
                )
            )
        return expected

    def _call(self, prompt: tuple[int, ...], turn: int) -> tuple[int, ...]:
        response = tuple(self.rng.choices(range(384), k=self.rng.randint(4, 32)))
        logprobs = tuple(-self.rng.random() * 4 for _ in response)
        known = self.kind != "untrainable"
        sequence_id = self._take_id()
        call = Generation(
            agent="solver",
            model=MODEL,
            resource_name="policy",
            resource_version=1 + turn % 3,
            request=f'{{"model": "{MODEL}", "turn": {turn}}}',
            response=f'{{"usage": {{"completion_tokens": {len(response)}}}}}',
            prompt_token_ids=prompt if known else (),
            response_token_ids=response if known else (),
            response_logprobs=logprobs if known else (),
            prompt_tokens=len(prompt),
            completion_tokens=len(response),
            finish_reason=self.rng.choice(("stop", "length", "tool_calls")),
            sampling={"temperature": 1.0},
            untrainable_reason=None if known else "no_token_ids",
        )
        self.calls.append((sequence_id, call))
        self.events.append(self._span(sequence_id, "chat tiny-policy", "client", call))
        return response

    def _tool(self) -> None:
        self.events.append(self._span(self._take_id(), "execute_tool calculator", "internal"))

    def _void(self) -> None:
        self.events.append(self._span(self._take_id(), "", "void"))

    def _hole(self) -> int:
        """Lose one span on the way, as a crashed program would."""
        lost = self.rng.choice([event for event in self.events if isinstance(event, Span)])
        self.events.remove(lost)
        return lost.sequence_id or 0

    def _take_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def _tick(self) -> datetime:
        self.time += timedelta(milliseconds=self.rng.randint(5, 400))
        return self.time

    def _span(self, sequence_id: int, name: str, kind: str, call: Generation | None = None) -> Span:
        start = self._tick()
        return Span(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            sequence_id=sequence_id,
            kind=kind,
            trace_id=self.attempt_id.replace("-", ""),
            span_id=f"{self.attempt_id[-12:]}{sequence_id:04x}",
            name=name,
            start_time=start,
            end_time=self._tick(),
            status="ok",
            attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": MODEL} if call else {},
            generation=call,
        )

    def _reward(self, value: float) -> Reward:
        return Reward(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            reward_id=derived_uuid7(int(self.time.timestamp() * 1000), self.attempt_id, "outcome"),
            value=value,
            source="grader",
            time=self._tick(),
        )

    def _event(self, kind: str, status: str) -> AttemptEvent:
        return AttemptEvent(
            rollout_id=self.rollout_id,
            attempt_id=self.attempt_id,
            kind=kind,
            status=status,
            runner_id="demo",
            last_sequence_id=self.next_id - 1 if kind == "ended" else None,
            error="the agent raised ToolError" if status == "failed" else None,
            origin=self.origin if kind == "started" else None,
            time=self._tick(),
        )


def make_workload(
    num_attempts: int, num_poison: int, *, seed: int, start: datetime, grace_s: float
) -> Workload:
    """The same seed gives the same records, but for their times, which begin at `start`."""
    rng = random.Random(seed)  # noqa: S311  a workload, not a secret
    workload = Workload([], {}, set(), set())
    kinds = rng.choices(list(_KINDS), list(_KINDS.values()), k=num_attempts)
    streams: list[list[Record]] = []
    for number, kind in enumerate(kinds):
        maker = _Maker(rng, number, kind, start + timedelta(milliseconds=number), grace_s)
        expected = maker.make()
        workload.expected[expected.attempt_id] = expected
        for event in maker.events:
            if isinstance(event, Span):
                workload.span_ids.add((event.attempt_id, event.span_id))
            elif isinstance(event, Reward):
                workload.reward_ids.add(event.reward_id)
        streams.append(_disordered(maker.events, rng))
    workload.items = list(_interleaved(streams, rng))
    for _ in range(num_poison):
        workload.items.insert(rng.randrange(len(workload.items)), _poison(workload.items, rng))
    return workload


def _disordered(events: Sequence[Record], rng: random.Random) -> list[Record]:
    """Out of order, and some twice; only the attempt's start comes before its end, as one key's do."""
    lives = [event for event in events if isinstance(event, AttemptEvent)]
    others = [event for event in events if not isinstance(event, AttemptEvent)]
    rng.shuffle(others)
    others += [event for event in others if rng.random() < 0.1]
    places = sorted(rng.sample(range(len(others) + len(lives)), len(lives)))
    for place, event in zip(places, lives, strict=True):
        others.insert(place, event)
    return others


def _interleaved(streams: Sequence[list[Record]], rng: random.Random, width: int = 64) -> Iterator[Record]:
    """Some attempts at a time, an event of one and then of another."""
    waiting = list(reversed(streams))
    running: list[list[Record]] = []
    while waiting or running:
        while waiting and len(running) < width:
            running.append(list(reversed(waiting.pop())))
        chosen = rng.randrange(len(running))
        yield running[chosen].pop()
        if not running[chosen]:
            running.pop(chosen)


def _poison(items: Sequence[Record | Poison], rng: random.Random) -> Poison:
    """Bad magic, an unknown schema id, a body cut short, no Avro at all."""
    record = next(item for item in items if isinstance(item, Record))
    value = rng.choice(
        (
            b"\x07\x00\x00\x03\xf0" + rng.randbytes(40),
            b"\x00\x7f\xff\xff\xfe" + rng.randbytes(40),
            b"\x00\x00\x00",
            b'{"this": "is JSON"}',
        )
    )
    return Poison(record.key, value)
