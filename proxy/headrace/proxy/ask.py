"""Ask: what is added to a request to make its answer fit to train on, and taken out of the answer. Pure.

vLLM gives token ids for `return_token_ids`, and with logprobs those of the sampled tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from headrace.proxy.dialect import Json
from headrace.proxy.problem import bad_request

Operation = Literal["chat", "text_completion"]

MAX_CHOICES = 128
"""Ids that are taken before there is an answer."""


class Asked(NamedTuple):
    """What the client wants to see itself."""

    token_ids: bool
    logprobs: bool
    usage: bool
    """Of a stream: in its last chunk. In one piece it is always there."""


def ask(request: Json, operation: Operation, *, is_stream: bool, with_token_ids: bool) -> Asked:
    """Add to the request what capture needs; say what of it the client had asked for.

    `with_token_ids` is for upstreams that know vLLM's extension: others refuse members they don't know.
    """
    options = request.get("stream_options")
    options = options if isinstance(options, dict) else {}
    asked = Asked(
        token_ids=bool(request.get("return_token_ids")),
        logprobs=_wants_logprobs(request, operation),
        usage=bool(options.get("include_usage")),
    )
    if is_stream:
        request["stream_options"] = options | {"include_usage": True}
    if with_token_ids:
        request["return_token_ids"] = True
        if not asked.logprobs:
            # 0 alternatives for completions: the sampled token's logprob comes with any number of them.
            request["logprobs"] = True if operation == "chat" else 0
    return asked


def strip(payload: Json, asked: Asked, *, is_chunk: bool) -> bool:
    """Take out what the client did not ask for; False if nothing is left to send."""
    choices = payload.get("choices")
    if not asked.token_ids:
        payload.pop("prompt_token_ids", None)
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        if not asked.token_ids:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
        if not asked.logprobs and choice.get("logprobs") is not None:
            choice["logprobs"] = None
    if not is_chunk:
        return True
    usage = payload.get("usage")
    if not asked.usage:
        payload.pop("usage", None)
    if not choices:
        return asked.usage or usage is None
    # An engine that holds text back, for a stop string or a tool call, sends ids alone meanwhile.
    return asked.token_ids or asked.logprobs or not all(map(_is_silent, choices))


def is_stream(request: Json) -> bool:
    """RefusedError for what upstreams may read either way: `1`, `"true"`."""
    stream = request.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("true or false is expected", "stream")
    return bool(stream)


def num_choices(request: Json, operation: Operation) -> int:
    """How many answers the request is for; 1 for a number of none, which the upstream will refuse.

    RefusedError for what is no whole number: upstreams differ in what they make of `"2"`.
    """
    number = request.get("n")
    number = 1 if number is None else number
    if not isinstance(number, int) or isinstance(number, bool):
        raise bad_request("a whole number is expected", "n")
    number = max(number, 1)
    prompt = request.get("prompt")
    if operation == "text_completion" and isinstance(prompt, list) and prompt and not _is_token_ids(prompt):
        number *= len(prompt)
    return number


def sampling_of(request: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers that decide how tokens were drawn."""
    for name in _SAMPLING:
        value = request.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield name, float(value)


_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
)


def _wants_logprobs(request: Json, operation: Operation) -> bool:
    wanted = request.get("logprobs")
    return bool(wanted) if operation == "chat" else wanted is not None and wanted is not False


def _is_silent(choice: Any) -> bool:  # noqa: ANN401  JSON
    """A chunk's choice that has nothing but ids."""
    return isinstance(choice, dict) and choice.get("delta") == {} and choice.get("finish_reason") is None


def _is_token_ids(prompt: list[Any]) -> bool:
    return isinstance(prompt[0], int)
