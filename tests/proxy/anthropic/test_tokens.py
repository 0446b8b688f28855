from typing import Any

import orjson
import pytest
from anthropic.types import MessageTokensCount

from headrace.proxy.anthropic import read_count, tokenize_request
from headrace.proxy.dialect import Json
from headrace.proxy.problem import RefusedError

SAID: list[Json] = [{"role": "user", "content": "hi"}]
BODY: Json = {"model": "m", "messages": SAID}
TOOL: Json = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, {}, id="least"),
        pytest.param({"system": "s"}, {"messages": [{"role": "system", "content": "s"}, *SAID]}, id="system"),
        pytest.param(
            {"tools": [TOOL], "tool_choice": {"type": "auto"}},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
            id="tools",
        ),
        pytest.param({"max_tokens": 5, "temperature": 1, "stream": True}, {}, id="nothing of the sampling"),
        pytest.param(
            {"messages": [*SAID, {"role": "assistant", "content": "The"}]},
            {
                "messages": [*SAID, {"role": "assistant", "content": "The"}],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            id="words to go on from",
        ),
        pytest.param(
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"style": "plain"}},
            {
                "chat_template_kwargs": {
                    "reasoning_effort": "none",
                    "enable_thinking": False,
                    "style": "plain",
                }
            },
            id="no thinking",
        ),
        pytest.param(
            {"output_config": {"effort": "high"}},
            {"chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True}},
            id="effort",
        ),
    ],
)
def test_requests(more: Json, expected: Json) -> None:
    assert tokenize_request(BODY | more) == BODY | expected


def test_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        tokenize_request(BODY | {"messages": []})
    assert refused.value.problem.param == "messages"


def test_count() -> None:
    body = read_count({"count": 3, "max_model_len": 64, "tokens": [1, 2, 3]})
    assert orjson.loads(body) == {"input_tokens": 3}
    assert MessageTokensCount.model_validate_json(body).input_tokens == 3


@pytest.mark.parametrize("answer", [None, [], {}, {"count": "3"}, {"count": True}], ids=str)
def test_no_count(answer: Any) -> None:
    with pytest.raises(RefusedError) as refused:
        read_count(answer)
    assert refused.value.problem.status == 502
