"""Optimizer: AdamW over Megatron's DistributedOptimizer, clipped, with a learning rate for each step.

Each data-parallel rank keeps the state of its part of the weights, in float32 also under bf16. Biases and
norms don't decay. A step whose gradients are not finite changes nothing.
"""

import math
from functools import partial
from types import MethodType
from typing import Any, NamedTuple

import torch
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from pydantic import BaseModel, ConfigDict, Field

from headrace.trainer.policy.model import PolicyModel
from headrace.trainer.policy.schedule import ScheduleSettings, learning_rate

# How much of Adam's state a checkpoint keeps for any other spread; gathered over gloo, on one rank.
CHECKPOINT_METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient": True,
}


class OptimizerSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0)
    """None: never clipped."""
    schedule: ScheduleSettings = ScheduleSettings()


class OptimizerStep(NamedTuple):
    grad_norm: float
    """Of the whole model, before clipping."""
    lr: float
    was_skipped: bool


class Optimizer:
    """Of this rank's part of a model; built while `cpu.building` holds."""

    def __init__(self, model: PolicyModel, settings: OptimizerSettings) -> None:
        self._settings = settings
        config = model.config
        for parameter in model.parameters():
            # The mark of tied embeddings would give them a bucket of their own. Between buckets there is
            # padding, which Megatron (0.16.1) leaves out of a checkpoint's tensors, and counts when it cuts
            # them: what is saved is another weight's.
            parameter.shared_embedding = False
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
        self.model = DistributedDataParallel(config, ddp, model)
        # Tied embeddings stand in the first and in the last stage, and Megatron adds up their gradients when
        # each data-parallel rank has kept its part of them. Without the mark the parts of two stages are not
        # the same weights, so there every rank keeps all.
        is_tie_split = model.share_embeddings_and_output_weights and config.pipeline_model_parallel_size > 1
        config.finalize_model_grads_func = partial(_finalize, keep_all=is_tie_split)
        chained = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=settings.lr,
                min_lr=0.0,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.betas[0],
                adam_beta2=settings.betas[1],
                adam_eps=settings.eps,
                clip_grad=0.0,
                bf16=config.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=True,
            ),
            [self.model],
        )
        self._optimizer: DistributedOptimizer = chained.chained_optimizers[0]
        self.num_steps = 0
        inner = self._optimizer.optimizer
        # With Transformer Engine it is that one's own.
        self._is_torch = isinstance(inner, torch.optim.AdamW)
        # While there is no state, a checkpoint can't be made: of a model that was never trained, say.
        if not self._is_torch:
            self._optimizer.init_state_fn(inner, self._optimizer.config)
        else:
            _begin_state(inner)
            self._optimizer._set_main_param_and_optimizer_states = MethodType(_set_state, self._optimizer)  # noqa: SLF001

    def zero_grad(self) -> None:
        self.model.zero_grad_buffer()
        self._optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> OptimizerStep:
        """With the gradients that a backward pass has left in the model."""
        lr = learning_rate(self._settings.schedule, self._settings.lr, self.num_steps + 1)
        self._optimizer.prepare_grads()
        grad_norm = float(self._optimizer.get_grad_norm())
        if not math.isfinite(grad_norm):
            return OptimizerStep(grad_norm, lr, was_skipped=True)
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["lr_mult"]
            group["weight_decay"] = self._settings.weight_decay * group["wd_mult"]
        self._clip(grad_norm)
        self._optimizer.step_with_ready_grads()
        self.num_steps += 1
        return OptimizerStep(grad_norm, lr, was_skipped=False)

    def sharded_state_dict(self, model_state: dict[str, Any], *, is_loading: bool) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.sharded_state_dict(
            model_state, is_loading=is_loading, metadata=CHECKPOINT_METADATA
        )
        return found

    def load_state_dict(self, state: dict[str, Any], num_steps: int) -> None:
        self._optimizer.load_state_dict(state)
        self.num_steps = num_steps
        if self._is_torch:
            _separate_steps(self._optimizer)

    def _clip(self, grad_norm: float) -> None:
        """As torch clips; Megatron's own asks for CUDA's tensor types at each step."""
        if self._settings.max_grad_norm is None:
            return
        factor = self._settings.max_grad_norm / (grad_norm + 1e-6)
        gradients = [p.grad for p in self._optimizer.get_parameters() if p.grad is not None]
        if factor < 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)


def _finalize(
    model: list[torch.nn.Module],
    _num_tokens: object,
    *,
    keep_all: bool,
    **others: Any,  # noqa: ANN401  Megatron's own
) -> None:
    """Reduced over ranks, and not divided by anything: the loss is a sum."""
    finalize_model_grads(model, None, **(others | {"force_all_reduce": keep_all}))


# Without Transformer Engine, Megatron runs torch's AdamW, whose state has a `step` tensor for each weight:
# parts of DistributedOptimizer (0.16.1) don't expect it. The next three functions stand in for them.


def _begin_state(optimizer: torch.optim.AdamW) -> None:
    """Megatron's own leaves `step` out."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


@torch.no_grad()
def _set_state(
    self: DistributedOptimizer, model_param: torch.nn.Parameter, tensors: dict[str, torch.Tensor]
) -> None:
    """Its own looks for `step` among a checkpoint's tensors, where there is none."""
    group, order = self.model_param_group_index_map[model_param]
    parameter = self.optimizer.param_groups[group]["params"][order]
    targets = {"param": parameter, **self.optimizer.state[parameter]}
    for name in targets.keys() - {"step"}:
        targets[name].copy_(tensors[name])


def _separate_steps(optimizer: DistributedOptimizer) -> None:
    """It loads one `step` tensor into all weights, and each weight's update would count it up."""
    for state in optimizer.optimizer.state.values():
        state["step"] = state["step"].clone()
