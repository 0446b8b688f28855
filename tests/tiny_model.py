"""A model that has all that a real one has, in 120,000 weights: made in a second, without a download.

Qwen2 in float32 with a byte-level tokenizer, whose merges make a text's own ids differ from generated ones,
and a ChatML template with tools. Its weights are random, but not what becomes of them: it writes ASCII, ends
its turn within a hundred tokens or so, and its logits are far enough apart for greedy decoding to agree
between implementations. The same seed gives the same files, another seed another model.
"""

from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

VOCABULARY: Final = 384
MAX_TOKENS: Final = 2048

_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Not special, as in Qwen's own tokenizers: they stay in the text, where tool parsers look for them.
_MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
_WORDS = """
the of and to in is that it was for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first been
its who now people my made over did down only way find use may water long little very after words
called just where most know
"""

# As byte-level vocabularies write it.
_SPACE = "Ġ"

_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# The residual stream's first feature is the same for every token, so its column of the head is a bias.
_CONSTANT = 8.0
_WEIGHT_STD = 0.15
_NEVER = -10.0
_END = 0.5


def make(folder: Path, seed: int = 0) -> Path:
    """Write the model's files into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    config = _config(tokenizer)
    config.save_pretrained(folder)
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    GenerationConfig(**ends).save_pretrained(folder)  # type: ignore[no-untyped-call]
    save_file(_weights(config, tokenizer, seed), folder / "model.safetensors", {"format": "pt"})
    return folder


def _tokenizer() -> Qwen2Tokenizer:
    alphabet = sorted(ByteLevel.alphabet())
    merges = _merges(VOCABULARY - len(alphabet) - len(_CONTROL) - len(_MARKUP))
    tokens = [*alphabet, *(left + right for left, right in merges)]
    tokenizer = Qwen2Tokenizer(
        vocab={token: place for place, token in enumerate(tokens)},
        merges=merges,  # type: ignore[arg-type]  # its type says strings, it takes pairs
        unk_token=None,  # type: ignore[arg-type]  # as Qwen's own files have it
        eos_token="<|im_end|>",  # noqa: S106  no secret
        pad_token="<|endoftext|>",  # noqa: S106
        model_max_length=MAX_TOKENS,
    )
    tokenizer.add_tokens([AddedToken(token, special=True) for token in _CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _MARKUP])
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _merges(number: int) -> list[tuple[str, str]]:
    """Words grow letter by letter, with the space before them."""
    found: dict[tuple[str, str], None] = {}
    for word in _WORDS.split():
        token = _SPACE
        for letter in word:
            found[token, letter] = None
            token += letter
    return list(found)[:number]


def _config(tokenizer: Qwen2Tokenizer) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        architectures=["Qwen2ForCausalLM"],
    )


def _weights(config: Qwen2Config, tokenizer: Qwen2Tokenizer, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(_shapes(config).items()):
        is_norm = len(shape) == 1 and "norm" in name
        random = torch.randn(shape, generator=generator) * _WEIGHT_STD
        weights[name] = torch.ones(shape) if is_norm else random
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name][0] = 0.0
    weights["model.embed_tokens.weight"] *= 1 / _WEIGHT_STD
    weights["model.embed_tokens.weight"][:, 0] = _CONSTANT
    head = weights["lm_head.weight"]
    head[:, 0] = 0.0
    for token, place in tokenizer.get_vocab().items():
        if not _is_wanted(token):
            head[place] = 0.0
            head[place, 0] = _NEVER
    head[config.eos_token_id] = 0.0
    head[config.eos_token_id, 0] = _END
    return weights


def _shapes(config: Qwen2Config) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    return {name: weight.shape for name, weight in model.state_dict().items()}


def _is_wanted(token: str) -> bool:
    """What it writes by itself: ASCII that can be seen, and the end of its turn."""
    if token in _CONTROL or token in _MARKUP:
        return token == "<|im_end|>"  # noqa: S105  no secret
    return token.replace(_SPACE, " ").isascii()
