"""Weights into a spread model, and out of it: what the mapping says, done by all its processes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PretrainedConfig

from headrace.trainer.policy.config import Shape
from headrace.trainer.policy.mapping import EMBEDDING, Rule, rules
from headrace.trainer.policy.model import PolicyModel
from headrace.trainer.policy.parallel import Parallel

_TIED_COPY: Final = "output_layer.weight"


class WeightFiles(Mapping[str, torch.Tensor]):
    """A folder's safetensors; a tensor is read when it is asked for. Empty when there are none."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def fresh_weights(hf: PretrainedConfig, seed: int) -> dict[str, torch.Tensor]:
    """As Hugging Face begins a model: the same for a seed, however the model is spread."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(hf, dtype=torch.float32)  # type: ignore[no-untyped-call]
    found: dict[str, torch.Tensor] = model.state_dict()
    return found


@torch.no_grad()
def load_weights(
    model: PolicyModel, shape: Shape, parallel: Parallel, weights: Mapping[str, torch.Tensor]
) -> None:
    """Copy into the model's own type. ValueError where a weight is missing or has another shape."""
    for name, rule, parameter in _mapped(model, shape):
        missing = [hf_name for hf_name in rule.hf if hf_name not in weights]
        if missing:
            raise ValueError(f"the model's files lack {', '.join(missing)}")
        whole = [weights[hf_name] for hf_name in rule.hf]
        shard = rule.shard(whole, parallel.tp_rank, parallel.tp_size)
        if shard.shape != parameter.shape:
            raise ValueError(
                f"{' and '.join(rule.hf)}: {tuple(shard.shape)} where the config asks for "
                f"{tuple(parameter.shape)} in {name}"
            )
        parameter.copy_(shard)


@torch.no_grad()
def export_weights(model: PolicyModel, shape: Shape, parallel: Parallel) -> dict[str, torch.Tensor] | None:
    """Hugging Face's state dict, on the CPU, on global rank 0; None elsewhere. All processes must call."""
    if parallel.dp_rank:
        return None
    own: dict[str, torch.Tensor] = {}
    for name, rule, parameter in _mapped(model, shape):
        if name == _TIED_COPY and rule.hf == (EMBEDDING,):
            continue
        shards = _gathered(parameter.detach(), parallel)
        if parallel.tp_rank == 0:
            parts = zip(rule.hf, rule.join(shards), strict=True)
            own.update({hf_name: tensor.to("cpu", copy=True).contiguous() for hf_name, tensor in parts})
    if parallel.tp_rank:
        return None
    return _collected(own, parallel)


def _mapped(model: PolicyModel, shape: Shape) -> Iterator[tuple[str, Rule, torch.nn.Parameter]]:
    layers = [layer.layer_number - 1 for layer in model.decoder.layers]
    known = rules(shape, layers)
    for name, parameter in model.named_parameters():
        yield name, known[name], parameter


def _gathered(shard: torch.Tensor, parallel: Parallel) -> list[torch.Tensor]:
    if parallel.tp_size == 1:
        return [shard]
    shards = [torch.empty_like(shard) for _ in range(parallel.tp_size)]
    dist.all_gather(shards, shard.contiguous(), group=parallel.tp_group)
    return shards


def _collected(own: dict[str, torch.Tensor], parallel: Parallel) -> dict[str, torch.Tensor] | None:
    """Every stage's, on the first: tensor by tensor, so that no stage holds another's twice."""
    contents: list[list[tuple[str, torch.Size, torch.dtype]]] = [[] for _ in range(parallel.pp_size)]
    mine = [(name, tensor.shape, tensor.dtype) for name, tensor in own.items()]
    dist.all_gather_object(contents, mine, group=parallel.pp_group)
    first = dist.get_global_rank(parallel.pp_group, 0)
    if parallel.pp_rank:
        for tensor in own.values():
            dist.send(tensor.to(parallel.device), first, group=parallel.pp_group)
        return None
    for stage in range(1, parallel.pp_size):
        source = dist.get_global_rank(parallel.pp_group, stage)
        for name, size, dtype in contents[stage]:
            received = torch.empty(size, dtype=dtype, device=parallel.device)
            dist.recv(received, source, group=parallel.pp_group)
            own[name] = received.cpu()
    return own
