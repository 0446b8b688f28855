"""Parallel: this process among those that train one model, and the groups that it talks in."""

from typing import Final, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state as groups
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from pydantic import BaseModel, ConfigDict, Field
from torch._C._distributed_c10d import HashStore

from headrace.trainer.policy import cpu

_SEED: Final = 1


class ParallelSettings(BaseModel):
    """How a model is spread; what is left of the processes is data-parallel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor: int = Field(1, ge=1)
    pipeline: int = Field(1, ge=1)
    sequence: bool = False
    """Sequence parallelism along with tensor parallelism."""


class Parallel:
    """Open from `start` to `close`; one at a time in a process. Also a context manager."""

    def __init__(self, settings: ParallelSettings, device: torch.device) -> None:
        self.settings = settings
        self.device = device
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.tp_rank: int = groups.get_tensor_model_parallel_rank()
        self.tp_size = settings.tensor
        self.pp_rank: int = groups.get_pipeline_model_parallel_rank()
        self.pp_size = settings.pipeline
        self.dp_rank: int = groups.get_data_parallel_rank()
        self.dp_size: int = groups.get_data_parallel_world_size()
        self.tp_group: dist.ProcessGroup = groups.get_tensor_model_parallel_group()
        self.pp_group: dist.ProcessGroup = groups.get_pipeline_model_parallel_group()
        self.dp_group: dist.ProcessGroup = groups.get_data_parallel_group()

    @classmethod
    def start(cls, settings: ParallelSettings | None = None) -> Self:
        """Join the processes that torchrun started; without torchrun, be the only one.

        NCCL where CUDA is available, gloo where it isn't, and Megatron fitted to that. ValueError when the
        number of processes is no multiple of tensor times pipeline.
        """
        settings = settings or ParallelSettings()
        device = torch.device("cpu")
        if not cpu.install():
            device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
            torch.cuda.set_device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        if dist.is_torchelastic_launched():
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        model_size = settings.tensor * settings.pipeline
        if dist.get_world_size() % model_size:
            number = dist.get_world_size()
            dist.destroy_process_group()
            raise ValueError(
                f"{number} processes can't hold whole models of {settings.tensor} (tensor) x "
                f"{settings.pipeline} (pipeline) parts: start a multiple of {model_size}"
            )
        groups.initialize_model_parallel(
            tensor_model_parallel_size=settings.tensor,
            pipeline_model_parallel_size=settings.pipeline,
        )
        # Attention forks this generator for its dropout, also where there is none.
        model_parallel_cuda_manual_seed(_SEED)
        return cls(settings, device)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_first_stage(self) -> bool:
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.pp_size - 1

    @property
    def last_stage_rank(self) -> int:
        """The global rank of this pipeline's last stage."""
        return dist.get_global_rank(self.pp_group, self.pp_size - 1)

    @property
    def topology(self) -> tuple[int, int, int]:
        return self.tp_size, self.pp_size, self.dp_size

    def close(self) -> None:
        groups.destroy_model_parallel()
        dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
