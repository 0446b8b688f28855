"""CausalAttention: torch's own kernels in Megatron's layers, where there is no Transformer Engine.

Megatron's attention keeps scores of all pairs of positions, in float32; this keeps none of them.
Shape legend: S positions, B samples, H heads of this rank, G its key-value heads, D a head's size.
"""

import torch


class CausalAttention(torch.nn.Module):
    """Built and called as Megatron builds and calls its own; takes no mask but the causal one."""

    def __init__(self, *, softmax_scale: float | None = None, **_others: object) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(
        self,
        query_SBHD: torch.Tensor,
        key_SBGD: torch.Tensor,
        value_SBGD: torch.Tensor,
        _mask: None,
        **_others: object,
    ) -> torch.Tensor:
        """(S, B, H * D)."""
        repeats = query_SBHD.shape[2] // key_SBGD.shape[2]
        if repeats > 1:
            key_SBGD = key_SBGD.repeat_interleave(repeats, dim=2)
            value_SBGD = value_SBGD.repeat_interleave(repeats, dim=2)
        attended_BHSD = torch.nn.functional.scaled_dot_product_attention(
            query_SBHD.permute(1, 2, 0, 3),
            key_SBGD.permute(1, 2, 0, 3),
            value_SBGD.permute(1, 2, 0, 3),
            is_causal=True,
            scale=self._scale,
        )
        return attended_BHSD.permute(2, 0, 1, 3).flatten(2)
