"""A policy's state on disk: weights, Adam's state and random numbers, in torch_dist format.

It can be loaded by another number of processes, spread in another way; random numbers then begin anew.
"""

import random
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from headrace.trainer.policy.model import PolicyModel
from headrace.trainer.policy.optimizer import CHECKPOINT_METADATA, Optimizer
from headrace.trainer.policy.parallel import Parallel

_RNG: Final = "rng"


def save_state(folder: Path, model: PolicyModel, optimizer: Optimizer, parallel: Parallel) -> None:
    """All processes must call. The folder must exist and be empty, on storage that all of them see."""
    # The writer hands its results to this process through a queue of another process, started for it by
    # importing the main program again. That is for saves in the background; this one waits.
    filesystem_async._results_queue = SimpleQueue()  # noqa: SLF001
    state = _sharded_state(model, optimizer, is_loading=False)
    state |= {
        "num_steps": optimizer.num_steps,
        "topology": list(parallel.topology),
        _RNG: _sharded_rng(parallel),
    }
    dist_checkpointing.save(state, str(folder))


def load_state(folder: Path, model: PolicyModel, optimizer: Optimizer, parallel: Parallel) -> None:
    """All processes must call."""
    common = dist_checkpointing.load_common_state_dict(str(folder))
    state = _sharded_state(model, optimizer, is_loading=True)
    is_spread_alike = common["topology"] == list(parallel.topology)
    if is_spread_alike:
        state[_RNG] = _sharded_rng(parallel)
    loaded = dist_checkpointing.load(state, str(folder))
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"], loaded["num_steps"])
    if is_spread_alike:
        _set_rng(loaded[_RNG])


def _sharded_state(model: PolicyModel, optimizer: Optimizer, *, is_loading: bool) -> dict[str, Any]:
    own = model.sharded_state_dict(metadata=dict(CHECKPOINT_METADATA))
    return {"model": own, "optimizer": optimizer.sharded_state_dict(own, is_loading=is_loading)}


def _sharded_rng(parallel: Parallel) -> ShardedObject:
    state: dict[str, Any] = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "megatron": get_cuda_rng_tracker().get_states(),
    }
    if parallel.device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject(_RNG, state, (parallel.world_size,), (parallel.rank,), replica_id=0)


def _set_rng(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    get_cuda_rng_tracker().set_states(state["megatron"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
