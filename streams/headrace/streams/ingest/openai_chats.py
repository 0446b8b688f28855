"""Recorded OpenAI chat exchanges, one JSON object a line, as attempts.

A line is `{"request": …, "response": …}`, both as the API has them. Beside them it may have
- `reward`: a number, the attempt's outcome. In a conversation the last one given is the outcome, and
  each before it a reward named `step` for the call of its line.
- `rewards`: for the calls of this line. A number judges the choice at its place; an object
  `{"value": …, "name": "step", "choice": 0, "source": ""}` says which.
- `agent`, `task_id`, `group_id`: names. Without a task_id, the first messages make one, so that repeated
  samples of a task share it.
Any other member is kept as the attribute `headrace.line.<name>` of the spans.

One span per choice, and a sequence id for each span and reward: an attempt is complete only with its
rewards, and nothing has to wait for them. Ids follow from the line, so that a file read twice says the
same thing twice. A line that is in the window already, byte for byte, is counted as repeated and left out.
"""

import hashlib
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from headrace.schemas.codec import describe
from headrace.schemas.ids import derived_uuid7
from headrace.schemas.records import Generation, Record, Reward, Span
from headrace.schemas.records.reward import OUTCOME
from headrace.schemas.records.rollout import Mode
from headrace.streams.ingest import gen_ai
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.chat_line import ChatLine, Choice, describe_line
from headrace.streams.ingest.conversations import (
    DEFAULT_WINDOW,
    Conversation,
    Conversations,
    answer_digests,
    prefix_digests,
)
from headrace.streams.ingest.imported import ImportedAttempt
from headrace.streams.ingest.strict_json import Member, members

Grouping = Literal["conversation", "line"]

STEP = "step"
SOURCE = "ingest"


class _Attempt(Conversation):
    """An attempt that may go on with the next line."""

    def __init__(self, line: ChatLine, identity: str, task_id: str) -> None:
        created = line.response.created
        self.rollout_id = derived_uuid7(_time_ms(created), "rollout", identity)
        self.attempt_id = derived_uuid7(_time_ms(created), "attempt", identity)
        self.group_id = line.group_id
        self.task_id = task_id
        self.started = self.ended = _time(created)
        self.last_sequence_id = 0
        self.outcome: Reward | None = None
        self.outcome_about = 0
        """The first sequence id of the line that gave the outcome."""

    def place(self) -> dict[str, str | int]:
        """Ids for the next span or reward."""
        self.last_sequence_id += 1
        return {
            "rollout_id": self.rollout_id,
            "attempt_id": self.attempt_id,
            "sequence_id": self.last_sequence_id,
        }


class ChatImport:
    """Lines in, records out; holds what `Conversations` holds, however long the file."""

    def __init__(
        self, *, mode: Mode = "train", group: Grouping = "conversation", window: int = DEFAULT_WINDOW
    ) -> None:
        self.mode = mode
        self.group = group
        self.num_repeated = 0
        self._open: Conversations[_Attempt] = Conversations(window)

    def feed(self, text: str) -> list[Record]:
        """The line's spans and rewards, and the events of attempts that are over.

        A line that raises MalformedError has changed nothing.
        """
        try:
            return self._feed(text)
        except ValidationError as error:
            raise MalformedError("invalid", describe(error)) from error
        except RecursionError as error:
            raise MalformedError("invalid", "nested too deeply") from error
        except OverflowError as error:
            raise MalformedError("invalid", f"a number is out of range: {error}") from error

    def close(self) -> Iterator[Record]:
        """The rest: after the last line every attempt is over."""
        for attempt in self._open.close():
            yield from self._end(attempt)

    def _feed(self, text: str) -> list[Record]:
        found = members(text)
        line = _validate(found)
        identity = hashlib.sha256(f"{self.group}\x1f{text.strip()}".encode()).hexdigest()
        if self._open.has(identity):
            self.num_repeated += 1
            return []
        messages = line.request.messages
        prefixes = prefix_digests(messages)
        keys = answer_digests(prefixes[-1], [choice.message for choice in line.response.choices])
        fresh = _Attempt(line, identity, line.task_id or prefixes[-1].hex())
        # Built before anything changes: what is malformed shows here.
        spans = _spans(line, identity, found["request"].text, found["response"].text)
        rewards = _rewards(line, identity)
        attempt = (self._open.find(prefixes) if self.group == "conversation" else None) or fresh
        records: list[Record] = []
        first = attempt.last_sequence_id + 1
        trace_id = uuid.UUID(attempt.attempt_id).hex
        records += [span.model_copy(update=attempt.place() | {"trace_id": trace_id}) for span in spans]
        for reward in rewards:
            if reward.about_sequence_id is None:
                records += self._take_outcome(attempt, reward, first)
            else:
                about = {"about_sequence_id": first + reward.about_sequence_id - 1}
                records.append(reward.model_copy(update=attempt.place() | about))
        attempt.started = min(attempt.started, fresh.started)
        attempt.ended = max(attempt.ended, fresh.ended)
        for over in self._open.add(attempt, identity, keys):
            records += self._end(over)
        return records

    @staticmethod
    def _take_outcome(attempt: _Attempt, reward: Reward, about: int) -> Iterator[Reward]:
        """Hold back what may be the outcome; the one before it was a step's."""
        if attempt.outcome is not None:
            step = {"name": STEP, "about_sequence_id": attempt.outcome_about}
            yield attempt.outcome.model_copy(update=attempt.place() | step)
        attempt.outcome = reward
        attempt.outcome_about = about

    def _end(self, attempt: _Attempt) -> Iterator[Record]:
        if attempt.outcome is not None:
            yield attempt.outcome.model_copy(update=attempt.place())
        yield from ImportedAttempt(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            group_id=attempt.group_id,
            task_id=attempt.task_id,
            mode=self.mode,
            started=attempt.started,
            ended=attempt.ended,
            last_sequence_id=attempt.last_sequence_id,
        ).events()


def _validate(found: dict[str, Member]) -> ChatLine:
    try:
        return ChatLine.model_validate({name: member.value for name, member in found.items()})
    except ValidationError as error:
        raise MalformedError("invalid", describe_line(error)) from error


def _spans(line: ChatLine, identity: str, request: str, response: str) -> list[Span]:
    """The line's spans, in order of choice, as if it were an attempt of its own."""
    created = line.response.created
    attributes = _attributes(line)
    spans = []
    for index, choice in enumerate(line.ordered_choices()):
        spans.append(
            Span(
                rollout_id=derived_uuid7(_time_ms(created), "rollout", identity),
                attempt_id=derived_uuid7(_time_ms(created), "attempt", identity),
                sequence_id=index + 1,
                kind="client",
                span_id=hashlib.sha256(f"span\x1f{identity}\x1f{index}".encode()).hexdigest()[:16],
                name=f"chat {line.request.model}".rstrip(),
                start_time=_time(created),
                end_time=_time(created),
                status="ok",
                attributes=attributes,
                generation=_generation(line, choice, request, response),
            )
        )
    return spans


def _generation(line: ChatLine, choice: Choice, request: str, response: str) -> Generation:
    prompt_ids = line.response.prompt_token_ids or choice.prompt_token_ids or ()
    response_ids = choice.token_ids or ()
    reason = None if prompt_ids or response_ids else gen_ai.NO_TOKEN_IDS
    usage = line.response.usage
    completion_tokens = line.completion_tokens_of(choice)
    if reason is None and completion_tokens is None and usage and usage.completion_tokens is not None:
        # The choices' ids together are not as many as the engine says it made (C6).
        reason = "usage_mismatch"
    return Generation(
        agent=line.agent,
        model=line.response.model or line.request.model,
        request=request,
        response=response,
        prompt_token_ids=tuple(prompt_ids),
        response_token_ids=tuple(response_ids),
        response_logprobs=choice.sampled_logprobs(),
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=completion_tokens,
        finish_reason=choice.finish_reason,
        sampling=line.request.sampling(),
        choice_index=choice.index,
        num_choices=len(line.response.choices),
        untrainable_reason=reason,
    )


def _attributes(line: ChatLine) -> dict[str, str]:
    """By the GenAI conventions; the provider names the API, whoever served it."""
    request, response, usage = line.request, line.response, line.response.usage
    reasons = [choice.finish_reason for choice in line.ordered_choices() if choice.finish_reason]
    known: dict[str, Any] = {
        gen_ai.OPERATION: "chat",
        gen_ai.PROVIDER: "openai",
        gen_ai.AGENT_NAME: line.agent or None,
        gen_ai.REQUEST_MODEL: request.model or None,
        gen_ai.RESPONSE_MODEL: response.model or None,
        gen_ai.RESPONSE_ID: response.id or None,
        gen_ai.FINISH_REASONS: reasons or None,
        gen_ai.CHOICE_COUNT: len(response.choices) if len(response.choices) > 1 else None,
        gen_ai.STOP_SEQUENCES: [request.stop] if isinstance(request.stop, str) else request.stop,
        **{gen_ai.SAMPLING[name]: value for name, value in request.numbers() if name in gen_ai.SAMPLING},
    }
    if usage is not None:
        known[gen_ai.INPUT_TOKENS] = usage.prompt_tokens
        known[gen_ai.OUTPUT_TOKENS] = usage.completion_tokens
        known[gen_ai.CACHED_TOKENS] = usage.cached_tokens()
    extra = {f"headrace.line.{name}": value for name, value in (line.model_extra or {}).items()}
    return {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in (known | extra).items()
        if value is not None
    }


def _rewards(line: ChatLine, identity: str) -> list[Reward]:
    """About choice k+1 as if the line stood alone; about None: the attempt's outcome."""
    created = line.response.created
    place = {
        "rollout_id": derived_uuid7(_time_ms(created), "rollout", identity),
        "attempt_id": derived_uuid7(_time_ms(created), "attempt", identity),
    }
    rewards = [
        Reward(
            **place,
            reward_id=derived_uuid7(_time_ms(created), "reward", identity, str(index)),
            name=given.name,
            value=given.value,
            about_sequence_id=given.choice + 1,
            source=given.source or SOURCE,
            time=_time(created),
        )
        for index, given in enumerate(line.step_rewards())
    ]
    if line.reward is not None:
        rewards.append(
            Reward(
                **place,
                reward_id=derived_uuid7(_time_ms(created), "outcome", identity),
                name=OUTCOME,
                value=line.reward,
                source=SOURCE,
                time=_time(created),
            )
        )
    return rewards


def _time(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OSError) as error:
        raise MalformedError("invalid", "response.created is no time in seconds") from error


def _time_ms(seconds: float) -> int:
    return int(seconds * 1000)
