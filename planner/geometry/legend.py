"""Paper symbols and the names dsplan uses for them: written down once, quoted by every formula."""

from __future__ import annotations

from typing import NamedTuple


class Symbol(NamedTuple):
    """One line of the legend."""

    symbol: str  # as papers and docstrings write it
    name: str  # as the code writes it
    unit: str
    meaning: str


LEGEND: tuple[Symbol, ...] = (
    Symbol("h", "hidden", "", "width of the residual stream"),
    Symbol("L", "layers", "", "decoder layers"),
    Symbol("a", "heads", "", "query heads"),
    Symbol("kv", "kv_heads", "", "key/value heads"),
    Symbol("d", "head_dim", "", "width of one head"),
    Symbol("q", "heads * head_dim", "", "width of all query heads; h in most models"),
    Symbol("f", "ffn_hidden", "", "inner width of the MLP"),
    Symbol("V", "vocab", "", "rows of the embedding table"),
    Symbol("E", "experts", "", "experts of a mixture-of-experts layer"),
    Symbol("k", "experts_per_token", "", "experts that one token visits"),
    Symbol("s", "seq_len", "tokens", "tokens of one sample"),
    Symbol("b", "micro_batch", "samples", "samples of one forward pass on one rank"),
    Symbol("T", "tokens", "tokens", "b * s, tokens of one micro-batch"),
    Symbol("gas", "accumulation", "", "micro-batches of one optimizer step"),
    Symbol("N", "world_size", "", "all GPUs"),
    Symbol("G", "gpus_per_node", "", "GPUs of one node"),
    Symbol("t", "tp", "", "ranks that share one layer"),
    Symbol("n", "dp", "", "N / t, ranks that share the training states"),
    Symbol("Ψ", "rank_parameters", "", "parameters of one tensor-parallel rank before ZeRO divides them"),
    Symbol("Ψ_l", "layer_parameters", "", "the same for one layer"),
    Symbol("w", "weight_bytes", "bytes", "bytes of one weight"),
    Symbol("g", "gradient_bytes", "bytes", "bytes of one gradient on the wire"),
    Symbol("P", "peak_flop_per_s", "FLOP/s", "dense peak of one GPU in the precision of the run"),
    Symbol("e", "gemm_efficiency", "", "share of P that large matrix products reach"),
    Symbol("e_a", "attention_efficiency", "", "the same for a flash kernel, causal FLOPs counted"),
    Symbol("W", "hbm_bytes_per_s", "bytes/s", "memory bandwidth of one GPU"),
    Symbol("B", "bus_bytes_per_s", "bytes/s", "NCCL bus bandwidth inside a node"),
    Symbol("Net", "network_bytes_per_s", "bytes/s", "effective network rate of one node"),
    Symbol("pc", "host_link_bytes_per_s", "bytes/s", "effective rate between one GPU and host memory, one direction"),
)
