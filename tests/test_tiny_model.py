from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_model import VOCABULARY, make
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.streams.client.manifest import manifest_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("tiny"))


def test_a_seed_gives_the_same_files_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    first = manifest_of(folder)
    assert manifest_of(make(tmp_path / "again")) == first
    other = manifest_of(make(tmp_path / "other", seed=1))
    assert {name for name in first if other[name] != first[name]} == {"model.safetensors"}


def test_its_tokenizer_gives_back_any_text(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == VOCABULARY
    text = "what is the water? 4\n\té 水 <tool_call>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in ids
    # Generated letters need not be what the tokenizer makes of their text (C7).
    letters = [token for letter in " the" for token in tokenizer(letter)["input_ids"]]
    assert tokenizer.decode(letters) == " the"
    assert tokenizer(" the")["input_ids"] != letters


def test_its_template_has_tools_and_their_answers(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    call: dict[str, Any] = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nbe brief\n\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "parameters": {}}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nadd<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_it_writes_ascii_and_ends_its_turn(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    prompts = torch.tensor([ids] * 16)
    torch.manual_seed(0)
    written = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=300
    )
    samples = written[:, len(ids) :]
    texts = tokenizer.batch_decode(samples, skip_special_tokens=True)
    assert all(text.isascii() for text in texts)
    ended = (samples == tokenizer.eos_token_id).any(dim=1)
    assert ended.sum() >= 12
