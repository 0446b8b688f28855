"""Policy: the model that is trained, spread over processes, as one object with few methods.

Every process of a run makes one, and calls the same methods in the same order. Index t of what it says about
a sequence speaks of token t; position 0 is 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch.nn.functional import pad
from transformers import AutoConfig, PretrainedConfig

from headrace.trainer.policy import cpu
from headrace.trainer.policy.checkpoint import load_state, save_state
from headrace.trainer.policy.config import Shape
from headrace.trainer.policy.model import build_model
from headrace.trainer.policy.noise import quiet
from headrace.trainer.policy.optimizer import Optimizer, OptimizerSettings
from headrace.trainer.policy.parallel import Parallel
from headrace.trainer.policy.weights import WeightFiles, export_weights, fresh_weights, load_weights
from headrace.trainer.sample import LossOutput, MicroBatch

LossFunction = Callable[[torch.Tensor, torch.Tensor, MicroBatch], LossOutput]
"""Of logprobs (B, S), entropies (B, S) and the micro-batch that they are of."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The same on every process."""

    loss: float
    """Summed over all micro-batches and ranks."""
    grad_norm: float
    """Before clipping."""
    lr: float
    was_skipped: bool
    """The gradients were not finite; the weights are as they were."""
    sums: dict[str, float]
    maxima: dict[str, float]


class Policy:
    """A model from a folder of Hugging Face's; without weights there, one that `seed` decides.

    Without an optimizer's settings it can't be trained: a reference model takes no memory for that.
    """

    @quiet()
    def __init__(
        self,
        folder: Path,
        parallel: Parallel,
        optimizer: OptimizerSettings | None = None,
        *,
        temperature: float = 1.0,
        dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        """`dtype`: bf16 on CUDA and float32 on the CPU unless given. The temperature divides logits.

        UnsupportedModelError for a model that Megatron would compute otherwise, ValueError for bad files.
        """
        if dtype is None:
            dtype = torch.bfloat16 if parallel.device.type == "cuda" else torch.float32
        self.hf_config: PretrainedConfig = AutoConfig.from_pretrained(folder)
        self.temperature = temperature
        self._shape = Shape.of(self.hf_config)
        self._parallel = parallel
        # Sequence parallelism cuts sequences into equal parts.
        self._length_multiple = parallel.tp_size if parallel.settings.sequence else 1
        with cpu.building():
            self._model = build_model(self.hf_config, parallel, dtype=dtype, temperature=temperature)
            weights = WeightFiles(folder) or fresh_weights(self.hf_config, seed)
            load_weights(self._model, self._shape, parallel, weights)
            self._optimizer = Optimizer(self._model, optimizer) if optimizer else None

    @property
    def rank(self) -> int:
        return self._parallel.rank

    @property
    def dp_rank(self) -> int:
        return self._parallel.dp_rank

    @property
    def dp_size(self) -> int:
        return self._parallel.dp_size

    @property
    def is_main(self) -> bool:
        return self._parallel.is_main

    @property
    def max_positions(self) -> int:
        """Of a sequence."""
        return int(self.hf_config.max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return int(self.hf_config.vocab_size)

    @property
    def num_steps(self) -> int:
        """Optimizer steps taken, those of a loaded checkpoint included; skipped ones don't count."""
        return self._trained.num_steps

    @quiet()
    def train(self, micro_batches: Sequence[MicroBatch], loss: LossFunction) -> StepOutput:
        """One optimizer step, on the gradient of the loss summed over all ranks' micro-batches.

        `micro_batches` are this data-parallel rank's; every rank must give equally many, at least one.
        """
        optimizer = self._trained
        optimizer.zero_grad()
        outputs: list[LossOutput] = self._run(micro_batches, partial(_loss_of, loss), is_training=True)
        sums, maxima = self._reduced(outputs)
        step = optimizer.step()
        return StepOutput(sums.pop("loss"), *step, sums, maxima)

    @quiet()
    @torch.no_grad()
    def logprobs(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Of the tokens, (B, S) float32 for each; on every rank that has a part of the model."""
        if not micro_batches:
            return []
        found: list[torch.Tensor] = self._run(micro_batches, _logprobs_of, is_training=False)
        if self._parallel.pp_size == 1:
            return found
        if not self._parallel.is_last_stage:
            sizes = [batch.token_ids_BS.shape for batch in micro_batches]
            found = [torch.empty(size, device=self._parallel.device) for size in sizes]
        for tensor in found:
            dist.broadcast(tensor, self._parallel.last_stage_rank, group=self._parallel.pp_group)
        return found

    def hf_state_dict(self) -> dict[str, torch.Tensor] | None:
        """Hugging Face's names and shapes, on the CPU, on rank 0; None elsewhere. All processes must call."""
        return export_weights(self._model, self._shape, self._parallel)

    @quiet()
    def save(self, folder: Path) -> None:
        """Weights, optimizer and random numbers. All processes must call; the folder is there and empty."""
        save_state(folder, self._model, self._trained, self._parallel)

    @quiet()
    def load(self, folder: Path) -> None:
        """What `save` wrote, by any number of processes. All must call."""
        load_state(folder, self._model, self._trained, self._parallel)

    @property
    def _trained(self) -> Optimizer:
        if self._optimizer is None:
            raise RuntimeError("this policy was made without an optimizer: it can't be trained or saved")
        return self._optimizer

    def _run(
        self, micro_batches: Sequence[MicroBatch], finish: Callable[..., Any], *, is_training: bool
    ) -> list[Any]:
        """What `finish` collects on the last stage, one for each micro-batch; empty on other stages."""
        for batch in micro_batches:
            self._check(batch)

        def forward(batches: Iterator[MicroBatch], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
            batch = _moved(next(batches), self._parallel.device)
            token_ids_BS = pad(batch.token_ids_BS, (0, -batch.token_ids_BS.shape[1] % self._length_multiple))
            positions_BS = torch.arange(token_ids_BS.shape[1], device=self._parallel.device)
            output = model(
                input_ids=token_ids_BS,
                position_ids=positions_BS.expand_as(token_ids_BS),
                # Causal attention needs no other mask for padding on the right.
                attention_mask=None,
                labels=token_ids_BS,
            )
            return output, partial(finish, batch)

        collected: list[Any] = get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=iter(micro_batches),
            model=[self._trained.model if is_training else self._model],
            num_microbatches=len(micro_batches),
            # Stages tell each other the shapes; these are only asked for.
            seq_length=micro_batches[0].token_ids_BS.shape[1],
            micro_batch_size=micro_batches[0].token_ids_BS.shape[0],
            forward_only=not is_training,
            collect_non_loss_data=not is_training,
        )
        return collected

    def _check(self, batch: MicroBatch) -> None:
        length = batch.token_ids_BS.shape[1]
        if length > self.hf_config.max_position_embeddings:
            raise ValueError(
                f"a sequence of {length} tokens, where the model has "
                f"{self.hf_config.max_position_embeddings} positions"
            )

    def _reduced(self, outputs: Sequence[LossOutput]) -> tuple[dict[str, float], dict[str, float]]:
        """Over micro-batches and data-parallel ranks, and from the last stage to the others."""
        found: list[Any] = [None, None]
        if self._parallel.is_last_stage:
            group = self._parallel.dp_group
            sums = [{"loss": output.loss.detach(), **output.sums} for output in outputs]
            maxima = [output.maxima for output in outputs]
            found = [
                _over_ranks(sums, dist.ReduceOp.SUM, group),
                _over_ranks(maxima, dist.ReduceOp.MAX, group),
            ]
        if self._parallel.pp_size > 1:
            dist.broadcast_object_list(found, self._parallel.last_stage_rank, group=self._parallel.pp_group)
        sums_by_name, maxima_by_name = found
        return sums_by_name, maxima_by_name


def _loss_of(
    loss: LossFunction, batch: MicroBatch, statistics_2BS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, LossOutput]:
    """As Megatron wants it; its number of tokens would divide the loss, and is not used."""
    logprobs_BS, entropy_BS = statistics_2BS
    length = batch.token_ids_BS.shape[1]
    output = loss(logprobs_BS[:, :length], entropy_BS[:, :length], batch)
    return output.loss, torch.zeros((), dtype=torch.int, device=output.loss.device), output


def _logprobs_of(batch: MicroBatch, statistics_2BS: torch.Tensor, *, non_loss_data: bool) -> torch.Tensor:
    del non_loss_data
    return statistics_2BS[0, :, : batch.token_ids_BS.shape[1]].contiguous()


def _moved(batch: MicroBatch, device: torch.device) -> MicroBatch:
    return MicroBatch(*(None if tensor is None else tensor.to(device) for tensor in batch))  # type: ignore[arg-type]


def _over_ranks(
    rows: Sequence[dict[str, torch.Tensor]], op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup
) -> dict[str, float]:
    """Rows have the same names on all ranks."""
    names = sorted(rows[0])
    if not names:
        return {}
    table = torch.stack([torch.stack([row[name].double() for name in names]) for row in rows])
    total = table.sum(0) if op == dist.ReduceOp.SUM else table.amax(0)
    dist.all_reduce(total, op=op, group=group)
    return dict(zip(names, total.tolist(), strict=True))
