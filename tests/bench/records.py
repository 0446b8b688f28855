"""The records that benches publish: what agents with an engine that gives token ids would.

The same in each run. Ids are distinct; of the calls' contents there are `_CONTENTS`, more than fit into one
compressed batch, so that compression finds no more in them than in real ones.
"""

import gc
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import TypeAlias

from tests.builders import TIME, Attempt, an_id

from headrace.schemas.records import AttemptEvent, Generation, Reward, Span

Event = AttemptEvent | Span | Reward

_VOCABULARY = 50_000
_CONTENTS = 4_000
_SPANS_PER_ATTEMPT = 20
_OPEN = 64
_TURNS = 4
EVENTS_PER_ATTEMPT = 2 * _TURNS + 2


_Conversation: TypeAlias = tuple[Generation, ...]
"""The calls of an attempt, each with a prompt that goes on from the one before."""


def spans(num: int) -> list[Span]:
    """Model calls of about 1 KB when encoded: 44 + 24 token ids, 24 logprobs, and their text."""
    source = random.Random(1)
    contents = [_generation(source, _token_ids(source, 44)) for _ in range(_CONTENTS)]
    made = []
    for number in range(num):
        if number % _SPANS_PER_ATTEMPT == 0:
            attempt = Attempt(f"span-{number}")
            base = attempt.span(
                1,
                name="chat",
                kind="client",
                trace_id=f"{source.getrandbits(128):032x}",
                end_time=TIME + timedelta(milliseconds=840),
                status="ok",
                attributes={"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny"},
            )
        sequence_id = number % _SPANS_PER_ATTEMPT + 1
        changes = {
            "sequence_id": sequence_id,
            "span_id": f"{source.getrandbits(64):016x}",
            "generation": contents[number % _CONTENTS],
        }
        made.append(base.model_copy(update=changes))
    gc.freeze()  # else each look of the garbage collector goes through all of them, while time is taken
    return made


def events(num_attempts: int) -> Iterator[Event]:
    """The events of attempts of which 64 are under way at a time; each is complete, and has an outcome.

    An attempt has 10: a start, 4 calls with token ids whose prompts grow, 3 tool spans, a reward, an end.
    """
    source = random.Random(2)
    conversations = [_conversation(source) for _ in range(_CONTENTS // _TURNS)]
    names = iter(range(num_attempts))
    under_way = [_attempt(name, conversations) for name in _first(names, _OPEN)]
    while under_way:
        place = source.randrange(len(under_way))
        event = next(under_way[place], None)
        if event is not None:
            yield event
            continue
        name = next(names, None)
        if name is None:
            del under_way[place]
        else:
            under_way[place] = _attempt(name, conversations)


def _first(names: Iterator[int], num: int) -> list[int]:
    return [name for _, name in zip(range(num), names, strict=False)]


def _attempt(name: int, conversations: list[_Conversation]) -> Iterator[Event]:
    attempt = Attempt(f"attempt-{name}", group_size=8)
    yield attempt.started()
    template = attempt.span(1, name="chat", kind="client", end_time=TIME + timedelta(milliseconds=840))
    tool = attempt.span(1, name="execute_tool", attributes={"gen_ai.tool.name": "search"})
    sequence_id = 0
    for generation in conversations[name % len(conversations)]:
        if sequence_id:
            sequence_id += 1
            yield tool.model_copy(
                update={"sequence_id": sequence_id, "span_id": f"{name:08x}-{sequence_id:04x}"}
            )
        sequence_id += 1
        changes = {
            "sequence_id": sequence_id,
            "span_id": f"{name:08x}-{sequence_id:04x}",
            "generation": generation,
        }
        yield template.model_copy(update=changes)
    yield Reward(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        reward_id=an_id("reward", name),
        value=float(name % 2),
        time=TIME,
    )
    yield attempt.ended(sequence_id)


def _conversation(source: random.Random) -> _Conversation:
    prompt = _token_ids(source, 64)
    calls = []
    for _ in range(_TURNS):
        calls.append(_generation(source, prompt))
        prompt += calls[-1].response_token_ids + _token_ids(source, 8)
    return tuple(calls)


def _generation(source: random.Random, prompt: tuple[int, ...]) -> Generation:
    response = _token_ids(source, 24)
    return Generation(
        agent="solver",
        model="tiny",
        resource_name="policy",
        resource_version=3,
        request='[{"role": "user", "content": "' + _text(source, len(prompt)) + '"}]',
        response=_text(source, len(response)),
        prompt_token_ids=prompt,
        response_token_ids=response,
        response_logprobs=tuple(-3 * source.random() for _ in response),
        prompt_tokens=len(prompt),
        completion_tokens=len(response),
        finish_reason="stop",
        sampling={"temperature": 1.0},
    )


def _token_ids(source: random.Random, num: int) -> tuple[int, ...]:
    return tuple(source.randrange(_VOCABULARY) for _ in range(num))


def _text(source: random.Random, num_tokens: int) -> str:
    """As long as a text of so many tokens is in English."""
    return "".join(source.choices("etaoin shrdlu", k=4 * num_tokens))
