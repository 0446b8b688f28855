"""The process that trains for train_tokens_per_s: our Policy, and Hugging Face's model with AdamW, in turns.

Both begin with the same weights and take the same steps: the same micro-batches, loss, clipping and learning
rate, on one thread. Gradients that differ mean that it was not the same work, and there is no figure. A step
waits for nothing, so that its seconds of CPU are what it takes on a core that nobody else wants.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import orjson
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.schemas.errors import FatalError
from headrace.trainer.loss import PolicyLoss
from headrace.trainer.micro_batches import micro_batches
from headrace.trainer.policy import OptimizerSettings, Parallel, Policy
from headrace.trainer.sample import MicroBatch, Sample, WeightedSample

VOCABULARY = 2048
MICRO_BATCH_TOKENS = 4096
LONGEST = 320
_SHORTEST = 192
"""Of the sequences: 256 tokens on average."""
_PROMPT = 64
_SETTINGS = OptimizerSettings(lr=1e-4, max_grad_norm=1.0)
_LOSS = PolicyLoss(entropy_coef=0.01)
"""With an entropy term, so that nobody can leave entropies out."""
_LARGEST_DIFFERENCE = 0.01
"""Of two gradient norms. Adam makes much of what two computations differ by in a gradient near 0."""


class Step(NamedTuple):
    cpu_s: float
    wall_s: float
    grad_norm: float


class Trainer(Protocol):
    def train(self, batches: Sequence[MicroBatch]) -> float:
        """One optimizer step; the gradient's norm before clipping."""


class Ours:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def train(self, batches: Sequence[MicroBatch]) -> float:
        return self._policy.train(batches, _LOSS).grad_norm


class HuggingFace:
    """As one writes it by hand; attention is what transformers chooses."""

    def __init__(self, folder: Path) -> None:
        self._model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.train()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=_SETTINGS.lr,
            betas=_SETTINGS.betas,
            eps=_SETTINGS.eps,
            weight_decay=_SETTINGS.weight_decay,
        )

    def train(self, batches: Sequence[MicroBatch]) -> float:
        self._optimizer.zero_grad()
        for batch in batches:
            _LOSS(*self._statistics(batch.token_ids_BS), batch).loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), _SETTINGS.max_grad_norm or 0.0)
        self._optimizer.step()
        return float(norm)

    def _statistics(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies."""
        logp = self._model(token_ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        logprobs = logp.gather(-1, token_ids[:, 1:, None])[..., 0]
        entropy = -(logp.exp() * logp).sum(-1)
        pad = torch.nn.functional.pad
        return pad(logprobs, (1, 0)), pad(entropy, (1, 0))


def main(num_rounds: int, num_samples: int) -> None:
    """A line for each round, in JSON."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch, Parallel.start() as parallel:
        folder = write_model(Path(scratch))
        policy = Policy(folder, parallel, _SETTINGS)
        batches = _batches(policy, num_samples)
        num_tokens = sum(
            _PROMPT * len(batch.weights_BS) + int(batch.weights_BS.count_nonzero()) for batch in batches
        )
        ours, theirs = Ours(policy), HuggingFace(folder)
        for number in range(num_rounds + 1):
            order: list[Trainer] = [ours, theirs] if number % 2 else [theirs, ours]
            steps = {trainer: _timed(trainer.train, batches) for trainer in order}
            our_step, their_step = steps[ours], steps[theirs]
            _check(our_step.grad_norm, their_step.grad_norm)
            if number:  # the first warms up
                line = {"num_tokens": num_tokens, "ours": our_step._asdict(), "theirs": their_step._asdict()}
                print(orjson.dumps(line).decode(), flush=True)


def write_model(folder: Path) -> Path:
    """Qwen2 of five million weights, which are random: most of a step is matrix products."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def _batches(policy: Policy, num_samples: int) -> list[MicroBatch]:
    """Sampled by the policy itself, as far as logprobs tell."""
    rng = random.Random(0)
    samples = [_sample(rng, num_samples) for _ in range(num_samples)]
    made = micro_batches(samples, max_tokens=MICRO_BATCH_TOKENS)
    return [
        batch._replace(behaviour_logprobs_BS=each, old_logprobs_BS=each)
        for batch, each in zip(made, policy.logprobs(made), strict=True)
    ]


def _sample(rng: random.Random, num_samples: int) -> WeightedSample:
    """A prompt and its answer, with one advantage for all of it."""
    length = rng.randint(_SHORTEST, LONGEST)
    is_action = tuple(place >= _PROMPT for place in range(length))
    nothing = (0.0,) * length
    token_ids = tuple(rng.choices(range(VOCABULARY), k=length))
    weight = 1 / (sum(is_action) * num_samples)
    return WeightedSample(
        Sample("", "", token_ids, is_action, nothing, nothing),
        advantages=(rng.gauss(0, 1),) * length,
        weights=tuple(weight * each for each in is_action),
    )


def _timed(train: Callable[[Sequence[MicroBatch]], float], batches: Sequence[MicroBatch]) -> Step:
    began, cpu_began = time.perf_counter(), time.process_time()
    grad_norm = train(batches)
    return Step(time.process_time() - cpu_began, time.perf_counter() - began, grad_norm)


def _check(ours: float, theirs: float) -> None:
    if abs(ours - theirs) > _LARGEST_DIFFERENCE * theirs:
        raise FatalError(f"a gradient norm of {ours:g}, and {theirs:g} in the peer: not the same work")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
