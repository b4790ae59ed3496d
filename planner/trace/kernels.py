"""Attention kernels that a GPU has and a CPU has not, for the trace: what they keep, without what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def fused_attention() -> Iterator[None]:
    """A fused kernel for values narrower or wider than queries (multi-head latent attention).

    On a CPU torch falls back to its own mathematics there and would keep every score; on a GPU the memory-efficient
    kernel takes such heads and keeps its operands, its output and one statistic a row.
    Source: torch 2.13, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp `check_head_dim_size_mem_efficient`.
    """
    from torch.nn import functional

    usual = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **options: Any) -> Any:
        same_heads = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        if same_heads and query.shape[-1] != value.shape[-1]:
            return _unequal_widths().apply(query, key, value, attn_mask)
        return usual(query, key, value, attn_mask, *rest, **options)

    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = usual


def _unequal_widths() -> Any:
    """The autograd function that stands in for the kernel; its results are empty tensors."""
    import torch

    class UnequalWidths(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
            batch, heads, length = query.shape[:3]
            output = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
            statistic = query.new_empty(batch, heads, length, dtype=torch.float32)
            ctx.save_for_backward(query, key, value, mask, output, statistic)
            return output

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return (*(torch.empty_like(operand) for operand in ctx.saved_tensors[:3]), None)

    return UnequalWidths
