"""What is known of a model for checking, also of one that dsplan cannot plan.

In: the context: a shape, a config.json as it is, or a name alone. Out: its type, its heads and width, its size. None:
nothing tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from planner import toml
from planner.check.context import Context
from planner.resources import read_table

BUILT_IN_LEAVES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
"""Source: deepspeed/runtime/zero/leaf_module_config.py DEFAULT_LEAF_MODULE_CLASSES (0.19.8)."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
WIDTH_ALIASES = ("n_embd", "d_model", "dim", "embed_dim", "hidden_dim", "emb_dim", "text_hidden_size")
"""Keys that some config classes of transformers map to hidden_size (`attribute_map`)."""


def type_of(context: Context) -> str | None:
    """transformers' model_type of the language model."""
    return context.model.model_type if context.model is not None else config_type_of(context)


def config_type_of(context: Context) -> str | None:
    """The model_type of the whole config.json, which may wrap the language model: as it says, else by its name."""
    given = (context.model_config or {}).get("model_type")
    by_name = _type_by_name(context.model_name or "")
    if isinstance(given, str):
        return by_name if given == f"{by_name}_text" else given
    return by_name


def _type_by_name(text: str) -> str | None:
    name = re.sub(r"[\s_]+", "-", text.casefold())
    return next((str(row["model_type"]) for row in _table()["name"] if name and re.search(row["pattern"], name)), None)


def blocks_of(model_type: str) -> tuple[str, ...]:
    """The classes that route tokens to experts; empty for a type without any, or one that is not known."""
    blocks = _table()["blocks"]
    return tuple(blocks.get(model_type) or blocks.get(model_type.removesuffix("_text")) or ())


def layers_of(model_type: str) -> tuple[str, ...]:
    """The classes that transformers never splits, its layers; empty for a type that is not known."""
    return tuple(_table()["layers"].get(model_type) or _table()["layers"].get(model_type.removesuffix("_text")) or ())


def family_of_class(name: str) -> str | None:
    """The model type that has a layer or an expert block of this name."""
    for family, names in (*_table()["layers"].items(), *_table()["blocks"].items()):
        if any(one.rpartition(".")[2] == name for one in names):
            return str(family)
    return None


def has_experts(context: Context) -> bool:
    """Whether the config itself counts experts."""
    if context.model is not None:
        return context.model.experts > 1
    config = text_config(context)
    return any(isinstance(config.get(key), int) and config[key] > 1 for key in EXPERT_COUNTS)


def bf16_source(context: Context) -> str | None:
    """Where it is said that the weights were trained in bf16; None where nothing says it."""
    config = context.model_config or {}
    if "bfloat16" in (config.get("torch_dtype"), config.get("dtype")):
        return "its config.json"
    found = _table()["trained_in_bf16"].get(type_of(context) or "")
    return None if found is None else str(found)


def text_config(context: Context) -> Mapping[str, Any]:
    """The fields of the language model in config.json."""
    config = context.model_config or {}
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def heads_of(context: Context) -> tuple[int, int] | None:
    """Query heads and key-value heads."""
    if context.model is not None:
        return context.model.heads, context.model.kv_heads
    config = text_config(context)
    heads = next((config[k] for k in ("num_attention_heads", "n_head", "num_heads") if k in config), None)
    shared = config.get("num_key_value_heads") or heads
    if isinstance(heads, int) and isinstance(shared, int) and heads > 0 and shared > 0:
        return heads, shared
    return None


def width_is_found(context: Context, *, in_text_config: bool) -> bool | None:
    """Whether the config has `hidden_size` or `hidden_sizes`, which "auto" sizes are computed from; None: not known.

    `in_text_config`: whether the reader looks into the language model of a multimodal config too.
    """
    model_type, config = config_type_of(context), context.model_config
    if model_type in _table()["no_width"]:
        return False
    if model_type in _table()["width_in_text_config"]:
        return in_text_config
    if config is None:
        return None
    if any(config.get(key) for key in ("hidden_size", "hidden_sizes", *WIDTH_ALIASES)):
        return True
    return False if "hidden_size" in config else None


def parameters_of(context: Context) -> int | None:
    """All parameters: counted, else as the name says, `6b`."""
    if context.model is not None:
        from planner.geometry.params import parameter_count

        return parameter_count(context.model)
    found = re.search(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z\d])", (context.model_name or "").casefold())
    if found is None:
        return None
    return int(float(found[2]) * 1e9) * int(found[1] or 1)


@cache
def _table() -> Mapping[str, Any]:
    return toml.loads(read_table("check", "models.toml"))
