"""A generated stream of attempts whose verdicts are known by construction, without asking the assembler.

Each kind of attempt is built together with the trajectory that must come of it, field by field. What is
published with it, and must change nothing, is known too: duplicates, a second end, rewards and spans that
come too late, bad records.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.builders import CODEC, TIME, Attempt, an_id

from headrace.schemas.records import (
    AttemptEvent,
    GivenReward,
    Record,
    Reward,
    Span,
    Trajectory,
    Transition,
)
from headrace.schemas.topics import topic_of

KINDS = {
    "complete": 10,
    "hole": 2,
    "failed": 2,
    "timeout": 1,
    "no outcome": 2,
    "untrainable call": 1,
}
"""Kinds of attempts, and how often each comes."""

PATIENT_S = 3600.0
"""Longer than any test: an attempt that will be complete is never closed early, whatever is killed."""


class Message(NamedTuple):
    """What is published, as it stands in Kafka. `topic` is the short name."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Story:
    """One attempt: what is published of it, and what must be known of it in the end."""

    verdict: Trajectory
    early: list[Record]
    """In the order of each topic; across topics any order will do."""
    ends: list[Record]
    """To be published once all that is early is acknowledged: a deadline runs from here."""
    late: list[Record]
    """To be published once the verdict is given."""
    late_span_ids: set[str]
    late_reward_ids: set[str]
    num_late_ends: int = 0

    def records(self) -> list[Record]:
        return [*self.early, *self.ends, *self.late]


@dataclass
class Stream:
    """Everything that is published, in waves, and the poison among it."""

    stories: list[Story]
    waves: list[tuple[list[Message], list[Message]]]
    """(early, ends) of each."""
    late: list[Message]
    poison: list[Message]
    strays: list[Record] = field(default_factory=list)
    """Good records under another's key: dead letters to the assembler, rows to the sink."""

    @property
    def num_messages(self) -> int:
        return sum(len(early) + len(ends) for early, ends in self.waves) + len(self.late)


def make_stream(rng: random.Random, *, num_attempts: int, num_waves: int = 4, num_poison: int = 40) -> Stream:
    """The stream that follows from this generator's seed."""
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=num_attempts)
    stories = [make_story(rng, f"{rng.getrandbits(64):x}", kind) for kind in kinds]
    poison, strays = make_poison(rng, num_poison)
    waves = []
    for number in range(num_waves):
        mine = stories[number::num_waves]
        early = interleave(rng, [story.early for story in mine])
        for message in poison[number::num_waves]:
            early.insert(rng.randrange(len(early) + 1), message)
        waves.append((early, interleave(rng, [story.ends for story in mine])))
    late = interleave(rng, [story.late for story in stories])
    return Stream(stories, waves, late, poison, strays)


def make_story(rng: random.Random, name: str, kind: str) -> Story:
    """An attempt of this kind with its verdict."""
    closes = kind in {"hole", "no outcome", "timeout", "failed"}
    rule = rng.choice(["outcome@1", "per_step@1"])
    grace_s = 0.5 if closes else PATIENT_S
    attempt = Attempt(
        name, group_id=f"group-{name[:2]}", group_size=4, credit_rule=rule, reward_grace_s=grace_s
    )
    calls, numbered, others, void = _events(rng, attempt, name, untrainable=kind == "untrainable call")
    last = len(calls) + len(numbered) + len(others) + len(void)
    spans = [*calls, *others, *void]
    late: list[Record] = []
    missing: tuple[int, ...] = ()
    if kind == "hole":
        gone = rng.choice(spans)
        spans.remove(gone)
        calls = [call for call in calls if call is not gone]
        late.append(gone)
        missing = (gone.sequence_id or 0,)
    styles = [
        attempt.reward(
            rng.randint(-8, 8) / 8,
            name="style",
            about_sequence_id=call.sequence_id,
            reward_id=an_id(name, "s", i),
        )
        for i, call in enumerate(rng.sample(calls, k=min(len(calls), rng.randint(0, 2))))
    ]
    outcome = attempt.reward(rng.randint(0, 8) / 8, reward_id=an_id(name, "outcome"))
    too_late = attempt.reward(0.375, reward_id=an_id(name, "second outcome"))
    status = {"failed": "failed", "timeout": "timeout"}.get(kind, "succeeded")
    end = attempt.ended(None if kind == "timeout" else last, status)

    expects_outcome = status == "succeeded"
    has_outcome = expects_outcome and kind != "no outcome"
    counted = [*numbered, *(styles if expects_outcome else []), *([outcome] if has_outcome else [])]
    rewards: list[Record] = [*styles, *([] if kind == "no outcome" else [outcome])]
    for reward in numbered:
        rewards.insert(rng.randrange(len(rewards) + 1), reward)
    late_rewards = [] if expects_outcome else [*styles, outcome]
    if kind == "no outcome":
        late.append(outcome)
        late_rewards = [outcome]
    elif rng.random() < 0.3:
        rewards.append(too_late)
        late_rewards.append(too_late)

    late_spans: list[Span] = [record for record in late if isinstance(record, Span)]
    if kind != "timeout" and rng.random() < 0.1:
        beyond = attempt.span(last + 1, name="beyond the end")
        spans.append(beyond)
        late_spans.append(beyond)
    rng.shuffle(spans)
    events: list[Record] = [attempt.started()]
    num_late_ends = 0
    if not closes:
        events.append(end)
        if rng.random() < 0.2:
            events.append(attempt.ended(last, "failed"))
            num_late_ends = 1
    early = _merge(rng, [_twice(rng, queue) for queue in (events, list[Record](spans), rewards)])
    verdict = Trajectory(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        group_id=attempt.origin.group_id,
        group_size=4,
        task_id="task",
        status=end.status,
        accepted=kind in {"complete", "untrainable call"},
        reason={
            "hole": "missing_sequence_ids",
            "failed": "attempt_failed",
            "timeout": "attempt_timeout",
            "no outcome": "no_outcome_reward",
        }.get(kind),
        outcome=outcome.value if has_outcome else None,
        credit_rule=rule,
        last_sequence_id=end.last_sequence_id,
        num_events=last - len(missing),
        missing_sequence_ids=missing,
        reward_ids=tuple(reward.reward_id for reward in counted),
        transitions=_transitions(rule, calls, counted, outcome if has_outcome else None),
        started_at=TIME,
        ended_at=TIME,
    )
    return Story(
        verdict,
        early,
        [end] if closes else [],
        late,
        {span.span_id for span in late_spans},
        {reward.reward_id for reward in late_rewards},
        num_late_ends,
    )


def make_poison(rng: random.Random, number: int) -> tuple[list[Message], list[Record]]:
    """Bad records of every sort, each unlike all others, and the good ones among them under a wrong key."""
    poison: list[Message] = []
    strays: list[Record] = []
    sorts = (
        "magic",
        "schema id",
        "truncated",
        "left over",
        "wrong type",
        "wrong key",
        "tombstone",
        "elsewhere",
    )
    for i in range(number):
        sort = sorts[i % len(sorts)]
        attempt = Attempt(f"poison-{rng.getrandbits(64):x}")
        records: list[Record] = [attempt.call(1), attempt.reward(), attempt.ended(3)]
        record = records[i // len(sorts) % len(records)]
        topic, value = topic_of(type(record)).name, CODEC.encode(record, "any")
        key: bytes | None = record.key
        if sort == "wrong key":
            if isinstance(record, AttemptEvent):
                record = attempt.call(1)
                topic, value = "spans", CODEC.encode(record, "any")
            strays.append(record)
            key = an_id("another", attempt.attempt_id).encode()
        elif sort == "wrong type":
            topic = {"spans": "rewards", "rewards": "attempts", "attempts": "spans"}[topic]
        elif sort == "elsewhere":
            topic = rng.choice(["rollouts", "tasks", "trajectories", "batches", "resources", "dead-letters"])
        bad: bytes | None = {
            "magic": b"\x01" + value[1:],
            "schema id": b"\x00\x7f\xff\xff\xff" + value[5:],
            "truncated": value[: rng.randrange(70, len(value) - 1)],
            "left over": value + b"\x00",
            "tombstone": None,
        }.get(sort, value)
        header = ("traceparent", f"00-{rng.getrandbits(128):032x}-01".encode())
        poison.append(Message(topic, key, bad, (header,)))
    return poison, strays


def interleave(rng: random.Random, queues: Iterable[Sequence[Record]], *, at_once: int = 32) -> list[Message]:
    """The queues' records, some attempts at a time, each queue in its own order."""
    waiting = [list(queue) for queue in queues if queue]
    out: list[Message] = []
    while waiting:
        index = rng.randrange(min(at_once, len(waiting)))
        out.append(message_of(waiting[index].pop(0)))
        if not waiting[index]:
            del waiting[index]
    return out


def message_of(record: Record) -> Message:
    return Message(topic_of(type(record)).name, record.key, CODEC.encode(record, "any"))


def _events(
    rng: random.Random, attempt: Attempt, name: str, *, untrainable: bool
) -> tuple[list[Span], list[Reward], list[Span], list[Span]]:
    """Calls of several turns, numbered rewards, tool spans and voids: their ids are 1, 2, 3 …"""
    calls: list[Span] = []
    numbered: list[Reward] = []
    others: list[Span] = []
    void: list[Span] = []
    context: tuple[int, ...] = ()
    for sequence_id in range(1, rng.randint(3, 8)):
        what = rng.random()
        if what < 0.6 or sequence_id == 1:
            if rng.random() < 0.2:
                context = context[
                    : len(context) // 2
                ]  # the history is cut: the prompt leaves the earlier ids
            prompt = (*context, *(rng.randrange(1000, 2000) for _ in range(rng.randint(1, 5))))
            response = tuple(rng.randrange(1000) for _ in range(rng.randint(1, 6)))
            logprobs = tuple(-rng.random() for _ in response)
            fields: dict[str, Any] = {"response_logprobs": logprobs, "resource_version": rng.randint(1, 5)}
            if untrainable and not calls:
                fields["untrainable_reason"] = "client_disconnected"
            calls.append(attempt.call(sequence_id, prompt, response, resource_name="policy", **fields))
            context = prompt + response
        elif what < 0.7:
            about = rng.choice(calls).sequence_id
            value = rng.randint(-8, 8) / 8
            reward_id = an_id(name, "n", sequence_id)
            numbered.append(
                attempt.reward(value, sequence_id, name="check", about_sequence_id=about, reward_id=reward_id)
            )
        elif what < 0.8:
            void.append(attempt.span(sequence_id, kind="void"))
        else:
            others.append(attempt.span(sequence_id, name="tool", attributes={"tool": "search"}))
    if untrainable:
        # One call that can train, so that the attempt can.
        last = len(calls) + len(numbered) + len(others) + len(void) + 1
        calls.append(attempt.call(last, (7, 8), (9,)))
    return calls, numbered, others, void


def _transitions(
    rule: str, calls: Sequence[Span], counted: Sequence[Reward], outcome: Reward | None
) -> tuple[Transition, ...]:
    """What must come of the calls. Values are eighths: sums are exact in any order."""
    found = []
    context: tuple[int, ...] = ()
    for step, call in enumerate(calls):
        generation = call.generation
        assert generation is not None
        given = [reward for reward in counted if reward.about_sequence_id == call.sequence_id]
        is_last = step == len(calls) - 1
        if rule == "outcome@1":
            credit = outcome.value if outcome else None
        else:
            values = [reward.value for reward in given]
            values += [outcome.value] if outcome and is_last else []
            credit = sum(values) if values else None
        prompt = generation.prompt_token_ids
        shared = 0
        while shared < min(len(prompt), len(context)) and prompt[shared] == context[shared]:
            shared += 1
        found.append(
            Transition(
                step=step,
                sequence_id=call.sequence_id or 0,
                span_id=call.span_id,
                model=generation.model,
                prefix_len=shared,
                prompt_suffix_token_ids=prompt[shared:],
                response_token_ids=generation.response_token_ids,
                response_logprobs=generation.response_logprobs,
                reward=credit,
                rewards=tuple(
                    GivenReward(reward_id=reward.reward_id, name=reward.name, value=reward.value)
                    for reward in given
                ),
                is_last=is_last,
                resource_name=generation.resource_name,
                resource_version=generation.resource_version,
                trainable=generation.untrainable_reason is None,
                reason=generation.untrainable_reason,
            )
        )
        context = prompt + generation.response_token_ids
    return tuple(found)


def _twice(rng: random.Random, records: list[Record]) -> list[Record]:
    """The same with some of them once more, further on: published twice."""
    out = list(records)
    for record in records:
        if rng.random() < 0.1:
            out.insert(rng.randrange(out.index(record) + 1, len(out) + 1), record)
    return out


def _merge(rng: random.Random, queues: Sequence[list[Record]]) -> list[Record]:
    """One order of all, each queue in its own."""
    waiting = [list(queue) for queue in queues if queue]
    out = []
    while waiting:
        queue = rng.choice(waiting)
        out.append(queue.pop(0))
        waiting = [queue for queue in waiting if queue]
    return out
