"""MarkedRMSNorm: torch's RMSNorm for Megatron's layers, with sequence parallelism.

Megatron's own wrapper refuses sequence parallelism. There each rank's norm sees a part of the sequence, so
its gradient must be summed over ranks; Megatron does that for the weights that bear the mark.
"""

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


class MarkedRMSNorm(torch.nn.RMSNorm):
    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_others: object
    ) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron's
