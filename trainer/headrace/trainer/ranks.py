"""Ranks: the processes of a run, as far as they tell each other anything but gradients."""

import torch.distributed as dist


class Ranks:
    """Where torch.distributed is up. Every process calls the same methods in the same order."""

    @property
    def is_main(self) -> bool:
        return dist.get_rank() == 0

    def barrier(self) -> None:
        """Return when every process has come here."""
        # Not dist.barrier: over NCCL that takes a device, and nothing here has one.
        self.broadcast(None)
        dist.all_gather_object([None] * dist.get_world_size(), None)

    def broadcast(self, value: object) -> object:
        """The main process's value, on every process."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]
