"""Spans: what is kept of a model call, one span a choice. Pure but for random span ids.

Ids that the call took and no choice used are not spans here: the caller voids them.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pydantic import ValidationError

from headrace.proxy.ask import Operation, sampling_of
from headrace.proxy.capture import Capture, CapturedChoice
from headrace.schemas.records import Generation, Span
from headrace.schemas.records.base import INT32_MAX
from headrace.streams.ingest import gen_ai

LOGPROBS_INVALID = "logprobs_invalid"
NO_CHOICES = "no_choices"
BEAM_SEARCH = "beam_search"
USAGE_MISSING = "usage_missing"
USAGE_MISMATCH = "usage_mismatch"
OTHER_MODEL = "other_model"
NOT_READABLE = "answer_not_readable"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the call belongs."""

    rollout_id: str
    attempt_id: str
    trace_id: str
    parent_span_id: str = ""
    agent: str = ""


@dataclass(slots=True)
class Call:
    """What is known of a call beside its answer."""

    place: Place
    operation: Operation
    dialect: str
    body: bytes
    """The client's request, byte for byte."""
    request: Mapping[str, Any]
    """What the upstream was asked."""
    started: datetime
    is_stream: bool
    num_choices: int = 1
    engine: str = ""
    resource_name: str | None = None
    resource_version: int | None = None
    is_other_model: bool = False
    """It was answered by other weights than those of the version."""
    distrust: str | None = None
    """Why the engine's logprobs can't be trained on, in a word."""
    status_code: int | None = None
    """Of the upstream's answer."""
    first_chunk: datetime | None = None
    problem: str | None = None
    """Why the answer is not whole, in a word; None if it is."""
    answer_body: bytes = b""
    """The upstream's answer, or its error, where that came in one piece."""
    error: Any = None
    """What it said of its failure in the middle of a stream."""


def num_spans(capture: Capture) -> int:
    """How many ids `spans_of` uses."""
    return max(len(capture.choices), 1)


def spans_of(call: Call, capture: Capture, sequence_ids: Sequence[int], ended: datetime) -> list[Span]:
    """In the order of choices and ids. A call without any choice is one span that says why."""
    choices = [choice for _, choice in sorted(capture.choices.items())] or [CapturedChoice(0)]
    return [
        _span(call, capture, choice, sequence_id, ended)
        for choice, sequence_id in zip(choices, sequence_ids, strict=True)
    ]


def _span(call: Call, capture: Capture, choice: CapturedChoice, sequence_id: int, ended: datetime) -> Span:
    try:
        generation = _generation(call, capture, choice)
        attributes = dict(_attributes(call, capture, choice))
    except (ValidationError, TypeError, ValueError, AttributeError, LookupError):
        # Of a form that no API has: its words are kept, if they can be, and nothing is taken from them.
        generation, attributes = _unread(call, capture, choice), {}
    is_whole = call.problem is None and bool(capture.choices)
    problem = call.problem or (None if capture.choices else NO_CHOICES)
    return Span(
        rollout_id=call.place.rollout_id,
        attempt_id=call.place.attempt_id,
        sequence_id=sequence_id,
        kind="client",
        trace_id=call.place.trace_id,
        span_id=os.urandom(8).hex(),
        parent_span_id=call.place.parent_span_id,
        name=f"{call.operation} {generation.model}".rstrip(),
        start_time=call.started,
        end_time=max(ended, call.started),
        status="ok" if is_whole else "error",
        status_message=problem or "",
        attributes=attributes,
        scope="headrace.proxy",
        generation=generation,
    )


def _generation(call: Call, capture: Capture, choice: CapturedChoice) -> Generation:
    logprobs, is_valid = _finite(choice.logprobs)
    known: dict[str, Any] = {
        "agent": call.place.agent,
        "model": capture.model or str(call.request.get("model") or ""),
        "resource_name": None if call.is_other_model else call.resource_name,
        "resource_version": None if call.is_other_model else call.resource_version,
        "request": call.body.decode(errors="replace"),
        "response": _response(call, capture, choice),
        "prompt_tokens": capture.prompt_tokens,
        "completion_tokens": capture.completion_tokens_of(choice),
        "finish_reason": choice.finish_reason,
        "sampling": dict(sampling_of(call.request)),
        "choice_index": choice.index,
        "num_choices": min(max(call.num_choices, 1, *(index + 1 for index in capture.choices)), INT32_MAX),
    }
    ids = {
        "prompt_token_ids": tuple(capture.prompt_of(choice)),
        "response_token_ids": tuple(choice.token_ids),
        "response_logprobs": logprobs,
    }
    reason = _why_untrainable(call, capture, choice) or (None if is_valid else LOGPROBS_INVALID)
    try:
        return Generation(**known, **ids, untrainable_reason=reason)
    except ValidationError:
        # What is no token id is not kept as one; the response has the engine's words.
        return Generation(**known, untrainable_reason=reason or NOT_READABLE)


def _unread(call: Call, capture: Capture, choice: CapturedChoice) -> Generation:
    return Generation(
        agent=call.place.agent,
        model=str(call.request.get("model") or ""),
        request=call.body.decode(errors="replace"),
        response=_raw(call, capture, choice),
        untrainable_reason=call.problem or NOT_READABLE,
    )


def _raw(call: Call, capture: Capture, choice: CapturedChoice) -> str:
    if call.answer_body:
        return call.answer_body.decode(errors="replace")
    try:
        return _response(call, capture, choice)
    except (TypeError, ValueError, AttributeError, LookupError):
        return ""


def _why_untrainable(call: Call, capture: Capture, choice: CapturedChoice) -> str | None:
    if call.problem is not None or not capture.choices:
        return call.problem or NO_CHOICES
    if not capture.prompt_of(choice) and not choice.token_ids:
        return gen_ai.NO_TOKEN_IDS
    if call.request.get("use_beam_search"):
        return BEAM_SEARCH
    if capture.completion_tokens is None:
        # Engines that give ids are asked for it, and without it nobody knows that no id is missing.
        return USAGE_MISSING
    if not capture.adds_up:
        return USAGE_MISMATCH
    return OTHER_MODEL if call.is_other_model else call.distrust


def _finite(logprobs: Sequence[Any]) -> tuple[tuple[float, ...], bool]:
    """The logprobs, and whether all are numbers: an echoed prompt has null in front."""
    if all(isinstance(each, (int, float)) and math.isfinite(each) for each in logprobs):
        return tuple(logprobs), True
    return (), False


def _response(call: Call, capture: Capture, choice: CapturedChoice) -> str:
    if not capture.choices:
        words = call.answer_body if call.error is None else orjson.dumps({"error": call.error})
        return words.decode(errors="replace")
    body = capture.head | {"choices": [choice.answer(call.operation)]}
    if capture.usage is not None:
        body["usage"] = capture.usage
    if call.error is not None:
        body["error"] = call.error
    return orjson.dumps(body).decode()


def _attributes(call: Call, capture: Capture, choice: CapturedChoice) -> Iterator[tuple[str, str]]:
    """By OpenTelemetry's GenAI conventions; ours begin with headrace."""
    request, usage = call.request, capture.usage or {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    known: dict[str, Any] = {
        gen_ai.OPERATION: call.operation,
        gen_ai.PROVIDER: "vllm" if capture.prompt_token_ids else "openai",
        gen_ai.AGENT_NAME: call.place.agent or None,
        gen_ai.REQUEST_MODEL: request.get("model"),
        gen_ai.RESPONSE_MODEL: capture.model or None,
        gen_ai.RESPONSE_ID: capture.head.get("id"),
        gen_ai.FINISH_REASONS: [choice.finish_reason] if choice.finish_reason else None,
        gen_ai.CHOICE_COUNT: call.num_choices if call.num_choices > 1 else None,
        gen_ai.STOP_SEQUENCES: request.get("stop"),
        gen_ai.INPUT_TOKENS: usage.get("prompt_tokens"),
        gen_ai.OUTPUT_TOKENS: usage.get("completion_tokens"),
        gen_ai.CACHED_TOKENS: cached,
        "headrace.dialect": call.dialect,
        "headrace.engine": call.engine or None,
        "headrace.is_stream": call.is_stream,
        "http.response.status_code": call.status_code,
    }
    if call.first_chunk is not None:
        known["headrace.time_to_first_chunk_s"] = (call.first_chunk - call.started).total_seconds()
    for name, value in request.items():
        if name in gen_ai.SAMPLING and value is not None:
            known[gen_ai.SAMPLING[name]] = value
    for name, value in known.items():
        if value is not None:
            yield name, value if isinstance(value, str) else orjson.dumps(value).decode()
