"""A Hugging Face model configuration to a tiny one of the same architecture, for the dry run.

In: the fields of a `config.json` and the tensor-parallel degree. Out: the same fields with small sizes. Kept: kinds of
layers, gating, norms, biases, tied embeddings, the number of query heads per key-value head, decoupled head sizes,
the ratio of MLP to hidden width, and what divides by the degree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.spec.size_keys import (
    EXPERT_FFN_KEYS,
    EXPERTS_KEYS,
    EXPERTS_PER_TOKEN_KEYS,
    FFN_KEYS,
    HEADS_KEYS,
    HIDDEN_KEYS,
    KV_HEADS_KEYS,
    LAYERS_KEYS,
    ONE_GROUP_KEYS,
    POSITIONS_KEYS,
)
from planner.units import ceil_div

LAYERS = 6  # enough that one layer is a small share, as in a real model
HEAD_DIM = 32
MAX_GROUP = 8  # query heads per key-value head
VOCAB = 1024  # times the hidden size above the usual stage-3 persistence threshold, so that something is divided
POSITIONS = 512
EXPERTS = 4

MLA = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
ATTENTION_DROPOUT_KEYS = ("attention_dropout", "attn_pdrop")


def shrink(config: Mapping[str, Any], *, tp: int) -> dict[str, Any]:
    """The configuration of a model with some million parameters."""
    small = dict(config)
    heads, kv_heads = _heads(config, tp=tp)
    hidden = _first(config, HIDDEN_KEYS)
    small_hidden = _hidden(config, heads)
    small_ffn = {
        key: _ffn(config[key], hidden, small_hidden) for key in (*FFN_KEYS, *EXPERT_FFN_KEYS) if config.get(key)
    }
    _set(small, HEADS_KEYS, heads)
    _set(small, KV_HEADS_KEYS, kv_heads)
    _set(small, HIDDEN_KEYS, small_hidden)
    _set(small, ("word_embed_proj_dim",), small_hidden)
    _set(small, ("head_dim", "query_pre_attn_scalar"), HEAD_DIM)
    _set(small, ("rotary_dim",), HEAD_DIM // 2)
    small.update(small_ffn)
    small.update({key: size for key, size in MLA.items() if config.get(key)})
    _set(small, ONE_GROUP_KEYS, 1)
    for keys, limit in ((POSITIONS_KEYS, POSITIONS), (EXPERTS_KEYS, EXPERTS), (EXPERTS_PER_TOKEN_KEYS, EXPERTS // 2)):
        small.update({key: min(config[key], limit) for key in keys if config.get(key)})
    small.update(dict.fromkeys(ATTENTION_DROPOUT_KEYS, 0.0))  # torch's attention on CPUs would keep every score for it
    small.update(vocab_size=VOCAB, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    _cut_layers(small)
    _plain_rope(small)
    return small


def _first(config: Mapping[str, Any], keys: tuple[str, ...], default: int = 0) -> int:
    return next((int(config[key]) for key in keys if config.get(key)), default)


def _set(small: dict[str, Any], keys: tuple[str, ...], value: int) -> None:
    """Change a size that the configuration names; one that it leaves to its class stays left to it."""
    small.update({key: value for key in keys if small.get(key) is not None})


def _heads(config: Mapping[str, Any], *, tp: int) -> tuple[int, int]:
    """Query and key-value heads: their ratio stays, and what tp divides it still divides."""
    heads = _first(config, HEADS_KEYS, 1)
    kv_heads = _first(config, KV_HEADS_KEYS, heads)
    kv_step = tp if kv_heads % tp == 0 else 1
    if kv_heads >= heads:
        several = kv_step * ceil_div(4, kv_step)
        return several, several
    few = min(kv_heads, kv_step * ceil_div(2, kv_step))
    step = tp if heads % tp == 0 else 1
    group = min(heads // kv_heads, MAX_GROUP)
    return step * ceil_div(few * group, step), few


def _hidden(config: Mapping[str, Any], heads: int) -> int:
    """Width of the small model: one head size a head, or the share of it that a decoupled head size leaves."""
    whole = _first(config, HIDDEN_KEYS, 1)
    attention = _first(config, HEADS_KEYS, 1) * _first(config, ("head_dim",), whole // _first(config, HEADS_KEYS, 1))
    return heads * max(8, 8 * round(HEAD_DIM * whole / attention / 8))


def _ffn(ffn: int, hidden: int, small_hidden: int) -> int:
    """MLP width in the same ratio to the hidden width; a multiple of 64, so that tp divides it."""
    return 64 * max(1, min(16, round(small_hidden * ffn / max(hidden, 1) / 64)))


def _cut_layers(small: dict[str, Any]) -> None:
    """Six layers, or as many as show every kind of layer."""
    kinds = small.get("layer_types")
    count = LAYERS
    if kinds:
        count = max(LAYERS, 1 + max(kinds.index(kind) for kind in kinds))
    _set(small, LAYERS_KEYS, count)
    for key, value in small.items():
        if isinstance(value, list) and key in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            small[key] = value[:count]
    if small.get("attention_types"):
        period = small["attention_types"][0][0]
        small["attention_types"] = [[period, count // len(period)]]
        small.pop("attention_layers", None)
    if small.get("mlp_only_layers"):
        small["mlp_only_layers"] = [layer for layer in small["mlp_only_layers"] if layer < count]
    if small.get("first_k_dense_replace"):
        small["first_k_dense_replace"] = 1
    _set(small, ("max_window_layers",), count)
    _set(small, ("num_nextn_predict_layers",), 0)


def _plain_rope(small: dict[str, Any]) -> None:
    """Rotary settings that list one number per dimension of a head no longer fit: plain rotary instead."""
    for key in ("rope_scaling", "rope_parameters"):
        settings = small.get(key)
        if isinstance(settings, dict) and any(isinstance(value, list) for value in settings.values()):
            small[key] = {"rope_type": "default", "rope_theta": settings.get("rope_theta", 10000.0)}
            if key == "rope_scaling":
                small[key] = None
