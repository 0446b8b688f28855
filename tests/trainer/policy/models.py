"""Small models of each kind, batches for them, and what Hugging Face and AdamW make of both."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from headrace.trainer.policy import OptimizerSettings
from headrace.trainer.sample import LossOutput, MicroBatch

# Divides by no number of ranks but 1.
VOCABULARY = 97
NUM_STEPS = 4
# Adam divides a gradient by its own size: with its usual eps, one that is nothing but rounding would move a
# weight as far as any other.
SETTINGS = OptimizerSettings(lr=2e-3, weight_decay=0.1, max_grad_norm=0.5, eps=1e-6)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16384,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_THETA = {"rope_type": "default", "rope_theta": 500000.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4, "rope_parameters": _THETA},
    "llama-tied": {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": _LLAMA3},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen2-tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False},
    "qwen3-tied": {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True},
}
MODELS = tuple(CONFIGS)


def config_of(name: str, **changes: Any) -> PretrainedConfig:
    family = name.removesuffix("-tied")
    config: PretrainedConfig = AutoConfig.for_model(family, **{**_SIZES, **CONFIGS[name], **changes})
    return config


def write_model(folder: Path, name: str, *, with_weights: bool = True, **changes: Any) -> Path:
    """With norms and biases that differ from where they begin, so that a mistake in them shows."""
    config = config_of(name, **changes)
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    if with_weights:
        torch.manual_seed(MODELS.index(name))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        weights = {
            key: weight + torch.randn_like(weight) * 0.1 * (weight.dim() == 1)
            for key, weight in model.state_dict().items()
            if not (config.tie_word_embeddings and key == "lm_head.weight")
        }
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def micro_batch(seed: int, num_samples: int, length: int) -> MicroBatch:
    random = torch.Generator().manual_seed(seed)
    size = (num_samples, length)
    weights = torch.rand(size, generator=random) / 100
    weights[:, 0] = 0.0
    zeros = torch.zeros(size)
    return MicroBatch(
        token_ids_BS=torch.randint(0, VOCABULARY, size, generator=random),
        weights_BS=weights,
        advantages_BS=torch.randn(size, generator=random),
        behaviour_logprobs_BS=zeros,
        old_logprobs_BS=zeros,
    )


def batches(step: int) -> list[MicroBatch]:
    """A step's micro-batches, of all ranks; no two have one shape."""
    shapes = ((2, 11), (3, 7), (1, 16), (2, 5))
    return [micro_batch(100 * step + place, *shape) for place, shape in enumerate(shapes)]


def loss(logprobs_BS: torch.Tensor, entropy_BS: torch.Tensor, batch: MicroBatch) -> LossOutput:
    """Gradients flow through both."""
    terms_BS = batch.advantages_BS * logprobs_BS + 0.3 * entropy_BS
    return LossOutput(
        -(batch.weights_BS * terms_BS).sum(),
        sums={"num_actions": (batch.weights_BS > 0).sum()},
        maxima={"length": torch.tensor(batch.token_ids_BS.shape[1])},
    )


@dataclass(slots=True)
class Reference:
    """What must come out."""

    logprobs: list[torch.Tensor] = field(default_factory=list)
    """Of the first step's batches, before any step."""
    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """After all steps."""


def statistics(
    model: torch.nn.Module, token_ids_BS: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    logp_BSV = (model(token_ids_BS).logits[:, :-1] / temperature).log_softmax(-1)
    logprobs_BS = logp_BSV.gather(-1, token_ids_BS[:, 1:, None])[..., 0]
    entropy_BS = -(logp_BSV.exp() * logp_BSV).sum(-1)
    return torch.nn.functional.pad(logprobs_BS, (1, 0)), torch.nn.functional.pad(entropy_BS, (1, 0))


def hugging_face(folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model


def reference(folder: Path, settings: OptimizerSettings = SETTINGS) -> Reference:
    model = hugging_face(folder)
    decaying = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    found = Reference()
    with torch.no_grad():
        found.logprobs = [statistics(model, batch.token_ids_BS)[0] for batch in batches(0)]
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        total = total_loss(model, batches(step))
        total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm or float("inf"))
        optimizer.step()
        found.losses.append(total.item())
        found.grad_norms.append(norm.item())
    found.weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    return found


def total_loss(model: torch.nn.Module, micro_batches: Sequence[MicroBatch]) -> torch.Tensor:
    losses = [loss(*statistics(model, batch.token_ids_BS), batch).loss for batch in micro_batches]
    return torch.stack(losses).sum()
