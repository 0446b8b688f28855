"""The model of the training demo: made here, of 60,000 weights, with bytes for tokens.

Its warm start teaches the form alone: to answer a letter with some digit, each as likely, and the end token.
It is the trainer's own supervised path, on transcripts with random digits: which one is right is not in them.
"""

import json
import math
import random
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from headrace.cli.demo.boxes import LETTERS, NUM_CALLS
from headrace.trainer.loss import SupervisedLoss
from headrace.trainer.micro_batches import micro_batches
from headrace.trainer.policy import OptimizerSettings, Parallel, Policy, ScheduleSettings
from headrace.trainer.sample import Sample, WeightedSample

END, USER, PAD = 256, 257, 258
_VOCABULARY = 264
"""256 bytes and the three above, and what makes it a round number."""
_MAX_TOKENS = 128
_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}{{ message.content }}<|end|>"
    "{% else %}<|user|>{{ message.content }}{% endif %}{% endfor %}"
)
WARM_STEPS = 150
_WARM_BATCH = 64
_WARM_LR = 3e-3


def make_model(folder: Path, seed: int) -> None:
    """A folder as Hugging Face has them, with random weights."""
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=_MAX_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
        dtype="float32",
    )
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    generation = {"eos_token_id": END, "pad_token_id": PAD}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    save_file(_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})


def warm_start(folder: Path, seed: int) -> float:
    """Train the folder's model on the form, and put the weights there; the last step's loss."""
    rng = random.Random(seed)  # noqa: S311  reproducible, not secret
    schedule = ScheduleSettings(decay="linear", num_steps=WARM_STEPS)
    optimizer = OptimizerSettings(lr=_WARM_LR, schedule=schedule)
    loss, batch_loss = SupervisedLoss(), float("nan")
    with Parallel.start() as parallel:
        policy = Policy(folder, parallel, optimizer, seed=seed)
        for _ in range(WARM_STEPS):
            samples = [_transcript(rng) for _ in range(_WARM_BATCH)]
            batch_loss = policy.train(micro_batches(samples, max_tokens=_WARM_BATCH * 16), loss).loss
        weights = policy.hf_state_dict()
    assert weights is not None  # noqa: S101  the only process
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return batch_loss


def _transcript(rng: random.Random) -> WeightedSample:
    """Two calls in the right form, answered at random."""
    token_ids: list[int] = []
    for _ in range(NUM_CALLS):
        token_ids += [USER, ord(rng.choice(LETTERS)), ord(rng.choice("0123456789")), END]
    is_action = tuple([False, False, True, True] * NUM_CALLS)
    nothing = (0.0,) * len(token_ids)
    sample = Sample("", "", tuple(token_ids), is_action, nothing, nothing)
    weight = 1 / (sum(is_action) * _WARM_BATCH)
    return WeightedSample(sample, (1.0,) * len(token_ids), tuple(weight * each for each in is_action))


def _tokenizer() -> PreTrainedTokenizerFast:
    """Each byte is its own token, under its own number."""
    characters = _byte_characters()
    inner = Tokenizer(
        models.BPE(vocab={character: byte for byte, character in characters.items()}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|end|>", "<|user|>", "<|pad|>"])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        eos_token="<|end|>",  # noqa: S106  a token of the vocabulary
        pad_token="<|pad|>",  # noqa: S106
        chat_template=_TEMPLATE,
        model_max_length=_MAX_TOKENS,
        clean_up_tokenization_spaces=False,
    )


def _byte_characters() -> dict[int, str]:
    """How byte-level tokenizers write bytes: printable ones as they are, the others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}


def _weights(config: Qwen2Config, seed: int) -> dict[str, torch.Tensor]:
    """Wide embeddings and a narrow head: which letter it was is easy to see, and no answer is preferred."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Qwen2ForCausalLM(config).state_dict().items()}  # type: ignore[no-untyped-call]
    weights = {}
    for name, shape in shapes.items():
        if "norm" in name:
            weights[name] = torch.ones(shape)
        elif name.endswith("bias"):
            weights[name] = torch.zeros(shape)
        else:
            scale = 1.0 if "embed_tokens" in name else 0.02 if "lm_head" in name else 0.05
            weights[name] = torch.randn(shape, generator=generator) * scale
    return weights


if __name__ == "__main__":
    target, number = Path(sys.argv[1]), int(sys.argv[2])
    make_model(target, number)
    loss = warm_start(target, number)
    print(  # noqa: T201  what the demo shows
        f"a model of 60,000 weights, warmed up on the form of answers: loss {loss:.3f} a token, "
        f"and {math.log(10) / 2:.3f} is a digit at random"
    )
