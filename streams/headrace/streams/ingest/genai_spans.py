"""Model calls out of span attributes and events, by the GenAI conventions of the day or older ones.

Messages are kept as they were recorded, in whichever form: the request and response of a generation are
JSON objects `{"model", "messages", …}` and `{"id", "model", "choices": [{"index", "message", …}]}`.
Token ids and logprobs are taken where the recorder wrote them (`headrace.prompt_token_ids`,
`headrace.response_token_ids`, `headrace.response_logprobs`, or Agent-Lightning's names), never made (G6).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.schemas.records import Generation
from headrace.schemas.records.span import SpanEvent
from headrace.streams.ingest import gen_ai
from headrace.streams.ingest.bad_input import MalformedError
from headrace.streams.ingest.proto_json import to_int64
from headrace.streams.ingest.strict_json import parse

PROMPT_IDS = ("headrace.prompt_token_ids", "prompt_token_ids")
RESPONSE_IDS = ("headrace.response_token_ids", "response_token_ids")
LOGPROBS = ("headrace.response_logprobs", "logprobs.content")

Attributes = Mapping[str, str]


def read_generations(attributes: Attributes, events: Sequence[SpanEvent]) -> tuple[Generation, ...]:
    """One for each choice; none if the span is no model call."""
    if not _is_model_call(attributes):
        return ()
    sources = [attributes, *(event.attributes for event in events)]
    answers = _answers(sources, events)
    reasons = _finish_reasons(attributes, answers)
    usage_in = _count(attributes, gen_ai.INPUT_TOKENS, gen_ai.OLD_INPUT_TOKENS)
    usage_out = _count(attributes, gen_ai.OUTPUT_TOKENS, gen_ai.OLD_OUTPUT_TOKENS)
    num_choices = max(len(answers), 1)
    # Of several choices nothing says whose the ids are.
    prompt_ids, response_ids, logprobs = _tokens(attributes) if num_choices == 1 else ([], [], [])
    return tuple(
        Generation.model_validate(
            {
                "agent": attributes.get(gen_ai.AGENT_NAME, ""),
                "model": attributes.get(gen_ai.RESPONSE_MODEL) or attributes.get(gen_ai.REQUEST_MODEL, ""),
                "request": _request(attributes, _prompt(sources, events)),
                "response": _response(attributes, answers, reasons),
                "prompt_token_ids": prompt_ids,
                "response_token_ids": response_ids,
                "response_logprobs": logprobs,
                "prompt_tokens": usage_in,
                "completion_tokens": usage_out if num_choices == 1 else None,
                "finish_reason": reasons[choice],
                "sampling": _sampling(attributes),
                "choice_index": choice,
                "num_choices": num_choices,
                "untrainable_reason": None if prompt_ids or response_ids else gen_ai.NO_TOKEN_IDS,
            }
        )
        for choice in range(num_choices)
    )


def _is_model_call(attributes: Attributes) -> bool:
    operation = attributes.get(gen_ai.OPERATION)
    if operation is not None:
        return operation in gen_ai.MODEL_CALLS
    return attributes.get(gen_ai.OLD_REQUEST_TYPE) in gen_ai.OLD_MODEL_CALLS


def _prompt(sources: Iterable[Attributes], events: Sequence[SpanEvent]) -> Any:  # noqa: ANN401  JSON
    """The messages that went in, in the newest form that is there; None without any."""
    found = _first(sources, gen_ai.INPUT_MESSAGES, gen_ai.OLD_PROMPT)
    if found is not None:
        return found
    return [
        {"role": gen_ai.MESSAGE_EVENTS[event.name], **_body(event)}
        for event in events
        if event.name in gen_ai.MESSAGE_EVENTS
    ] or None


def _answers(sources: Iterable[Attributes], events: Sequence[SpanEvent]) -> list[Any]:
    """The messages that came out, one for each choice."""
    found = _first(sources, gen_ai.OUTPUT_MESSAGES, gen_ai.OLD_COMPLETION)
    if found is not None:
        return found if isinstance(found, list) else [found]
    choices = [_body(event) for event in events if event.name == gen_ai.CHOICE_EVENT]
    choices.sort(key=lambda choice: index if isinstance(index := choice.get("index"), int) else 0)
    return [_unwrap(choice) for choice in choices]


def _unwrap(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice event has its message beside the finish reason, or spread out."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return {name: value for name, value in choice.items() if name != "index"}
    return {**message, "finish_reason": choice.get("finish_reason")}


def _first(sources: Iterable[Attributes], name: str, old_name: str) -> Any:  # noqa: ANN401  JSON
    for source in sources:
        if name in source:
            return _json_or_text(source[name])
        numbered = _numbered(source, f"{old_name}.")
        if numbered:
            return numbered
        if old_name in source:
            return _json_or_text(source[old_name])
    return None


def _body(event: SpanEvent) -> dict[str, Any]:
    """An event's own fields; what is JSON in them is read as such, except a text's content."""
    return {
        key: value if key == "content" else _json_or_text(value)
        for key, value in event.attributes.items()
        if not key.startswith("gen_ai.")
    }


def _json_or_text(text: str) -> Any:  # noqa: ANN401  JSON
    """An SDK's limit may have cut the JSON short: then it stays a text."""
    try:
        return parse(text)
    except MalformedError:
        return text


def _numbered(attributes: Attributes, prefix: str) -> list[Any]:
    """`prefix.0.role`, `prefix.0.tool_calls.0.name` … as the objects that they spell out."""
    root: dict[str, Any] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        *path, last = key.removeprefix(prefix).split(".")
        node = root
        for step in path:
            child = node.setdefault(step, {})
            if not isinstance(child, dict):
                break
            node = child
        else:
            node[last] = value
    folded = _fold(root)
    return folded if isinstance(folded, list) else []


def _fold(node: Any) -> Any:  # noqa: ANN401  JSON
    if not isinstance(node, dict):
        return node
    if node and all(key.isascii() and key.isdigit() for key in node):
        return [_fold(node[key]) for key in sorted(node, key=int)]
    return {key: _fold(value) for key, value in node.items()}


def _finish_reasons(attributes: Attributes, answers: Sequence[Any]) -> list[str | None]:
    """One for each choice: from its message, else from the list beside."""
    listed = _json_or_text(attributes.get(gen_ai.FINISH_REASONS, "[]"))
    listed = listed if isinstance(listed, list) else [listed]
    reasons: list[str | None] = []
    for choice in range(max(len(answers), 1)):
        answer = answers[choice] if choice < len(answers) else None
        own = answer.get("finish_reason") if isinstance(answer, dict) else None
        reason = own or (listed[choice] if choice < len(listed) else None)
        reasons.append(reason if isinstance(reason, str) and reason else None)
    return reasons


def _request(attributes: Attributes, messages: Any) -> str:  # noqa: ANN401  JSON
    known = {
        "model": attributes.get(gen_ai.REQUEST_MODEL),
        "system_instructions": _optional(attributes, gen_ai.SYSTEM_INSTRUCTIONS),
        "messages": messages,
        "tools": _optional(attributes, gen_ai.TOOL_DEFINITIONS),
    }
    return _dump(known)


def _response(attributes: Attributes, answers: Sequence[Any], reasons: Sequence[str | None]) -> str:
    choices = [
        {"index": index, "message": answer, "finish_reason": reasons[index]}
        for index, answer in enumerate(answers)
    ]
    known = {
        "id": attributes.get(gen_ai.RESPONSE_ID),
        "model": attributes.get(gen_ai.RESPONSE_MODEL),
        "choices": choices or None,
    }
    return _dump(known)


def _optional(attributes: Attributes, name: str) -> Any:  # noqa: ANN401  JSON
    return _json_or_text(attributes[name]) if name in attributes else None


def _dump(known: Mapping[str, Any]) -> str:
    present = {name: value for name, value in known.items() if value is not None}
    text = json.dumps(present, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        # A message with half a surrogate pair, escaped, as models cut off within an emoji give it.
        return json.dumps(present, separators=(",", ":"))
    return text


def _sampling(attributes: Attributes) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, attribute in gen_ai.SAMPLING.items():
        if name == "max_completion_tokens" or attribute not in attributes:
            continue
        try:
            number = float(attributes[attribute])
        except ValueError:
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers


def _count(attributes: Attributes, *names: str) -> int | None:
    for name in names:
        if name in attributes:
            return to_int64(attributes[name], name)
    return None


def _tokens(attributes: Attributes) -> tuple[Any, Any, Any]:
    """Prompt ids, response ids and logprobs as JSON; Generation checks them."""
    return (
        _listed(attributes, PROMPT_IDS),
        _listed(attributes, RESPONSE_IDS),
        [
            entry.get("logprob") if isinstance(entry, dict) else entry
            for entry in _listed(attributes, LOGPROBS)
        ],
    )


def _listed(attributes: Attributes, names: Iterable[str]) -> list[Any]:
    name = next((name for name in names if name in attributes), None)
    if name is None:
        return []
    value = parse(attributes[name]) if attributes[name] else []
    if not isinstance(value, list) or any(isinstance(item, str | bool) for item in value):
        raise MalformedError("invalid", f"{name}: a list of numbers is expected")
    return value
