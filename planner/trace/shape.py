"""A config.json of a type without formulas to a `ModelShape`: its tensors are read off the transformers model itself.

In: the parsed JSON object. Out: geometry and every parameter tensor by name, from a model without storage.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from planner.errors import PlannerError
from planner.geometry.params import EXPERT_PREFIX
from planner.records.model import AutoTP, ModelShape, Norm, ParameterTensor, Position, Split
from planner.records.request import Attention
from planner.records.traced import LayerKind, TracedModel
from planner.spec.size_keys import EXPERTS_KEYS, EXPERTS_PER_TOKEN_KEYS, FFN_KEYS, POSITIONS_KEYS, SIZE_KEYS
from planner.trace.build import build, quietly, read_config, require_transformers, versions
from planner.trace.layers import kinds_of_layers, stack_path

NOT_ARCHITECTURE = {
    "model_type",
    "architectures",
    "auto_map",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "quantization_config",
}
STATE_SPACE_KERNELS = ("causal_conv1d_fn", "selective_state_update", "chunk_gated_delta_rule")
"""What a modeling file imports where it can run faster code than its own."""


def traced_shape(
    model_type: str,
    fields: Mapping[str, Any],
    *,
    name: str,
    source: str,
    hub_id: str | None,
    path: str,
    formulas: Sequence[str],
) -> ModelShape:
    """The shape that `fields` describe; raises PlannerError where transformers is missing or cannot build it.

    `formulas` are the types that need no trace, for the suggestion after a misspelt one.
    """
    require_transformers(model_type, path, formulas)
    given = {key: value for key, value in fields.items() if key not in NOT_ARCHITECTURE}
    shape = _shape(model_type, json.dumps(given, sort_keys=True), path, tuple(formulas))
    return replace(shape, name=name, source=source, hub_id=hub_id)


@lru_cache(maxsize=64)
def _shape(model_type: str, fields: str, path: str, formulas: tuple[str, ...]) -> ModelShape:
    """The shape of one configuration, without its name; kept because a batch asks for the same model again."""
    given = json.loads(fields)
    with quietly():
        config = read_config(model_type, given, path, formulas)
        sizes = {key: value for key, value in config.to_dict().items() if key in SIZE_KEYS and value is not None}
        layers, heads = (_size(config, (key,), path) for key in ("num_hidden_layers", "num_attention_heads"))
        hidden, vocab = (_size(config, (key,), path) for key in ("hidden_size", "vocab_size"))
        model = build(config, attention="eager", dtype="bfloat16")
        stack = list(model.get_submodule(stack_path(model, layers)))
        kinds = _kinds(stack, kinds_of_layers(stack, config))
        others = tuple(_others(model, stack))
    routed = any(tensor.name.startswith(EXPERT_PREFIX) for kind in kinds for tensor in kind.tensors)
    experts, chosen = (
        _size(config, keys, path, default=0) if routed else 0 for keys in (EXPERTS_KEYS, EXPERTS_PER_TOKEN_KEYS)
    )
    known = bool(experts and chosen)
    return ModelShape(
        name=model_type,
        model_type=model_type,
        hub_id=None,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=min(heads, _size(config, ("num_key_value_heads",), path, default=heads)),
        head_dim=_head_dim(config, path, default=max(1, hidden // heads)),
        ffn_hidden=_size(config, FFN_KEYS, path, default=4 * hidden),
        vocab=vocab,
        max_positions=_size(config, POSITIONS_KEYS, path, default=10**9),
        tied_embeddings=all(tensor.name != "head" for tensor in others),
        gated_mlp=False,
        activation=str(getattr(config, "hidden_act", "unknown")),
        norm=Norm.RMS,
        norms_per_layer=2,
        parallel_block=False,
        qk_norm=False,
        qkv_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        head_bias=False,
        final_norm=True,
        position=_position(model),
        autotp=AutoTP.REFUSED,
        source="traced",
        experts=experts if known else 0,
        experts_per_token=min(chosen, experts) if known else 0,
        traits=(("autotp_reason", "never tried"),),
        hf_config={**sizes, **given},
        notes=_notes(model_type, model, unknown_routing=routed and not known),
        traced=TracedModel(versions=versions(), kinds=kinds, others=others, kernels=_kernels(model)),
    )


def _size(config: Any, keys: tuple[str, ...], path: str, *, default: int | None = None) -> int:
    """The first of the keys that holds a positive whole number."""
    for key in keys:
        try:
            value = getattr(config, key, None)
        except Exception:  # a field that differs from layer to layer raises transformers' own error
            continue
        if type(value) is int and value > 0:
            return value
    if default is None:
        raise PlannerError(
            f"a config of type `{config.model_type}` holds no `{keys[0]}` @ {path}",
            hint="dsplan plans decoder models with attention; give the model's own config.json",
        )
    return default


def _head_dim(config: Any, path: str, *, default: int) -> int:
    """The width of a head; the mean of query and value where they differ (multi-head latent attention)."""
    query, value = (_size(config, (key,), path, default=0) for key in ("qk_head_dim", "v_head_dim"))
    return (query + value) // 2 if query and value else _size(config, ("head_dim",), path, default=default)


# --- tensors


def _kinds(stack: Sequence[Any], numbers: Sequence[int]) -> tuple[LayerKind, ...]:
    found = []
    for kind in range(max(numbers) + 1):
        last = len(numbers) - 1 - list(reversed(numbers)).index(kind)
        after = tuple(numbers[last + 1 :].count(other) for other in range(max(numbers) + 1))
        layer = stack[numbers.index(kind)]
        tensors = tuple(_grouped((_layer_name(name), p) for name, p in layer.named_parameters()))
        found.append(LayerKind(layers=list(numbers).count(kind), layers_after=after, tensors=tensors))
    return tuple(found)


def _layer_name(name: str) -> str:
    """`self_attn.q_proj.weight` as `layer/self_attn/q`; routed experts under the prefix that counts active ones."""
    parts = [part for part in name.split(".") if part != "weight"]
    if parts[-1] == "gate":  # not `gate_proj`, which becomes a gate
        parts[-1] = "router"
    path = "/".join("each" if part.isdigit() else part.removesuffix("_proj") for part in parts)
    if "experts" in parts:
        return EXPERT_PREFIX + path.rpartition("experts/")[2].removeprefix("each/")
    return f"layer/{path}"


def _others(model: Any, stack: Sequence[Any]) -> Iterator[ParameterTensor]:
    inner = {id(p) for layer in stack for p in layer.parameters()}
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    names = {id(embedding): "embedding"}
    if head is not None and head.weight is not embedding:
        names[id(head.weight)] = "head"
    return _grouped(
        (names.get(id(p), name.removesuffix(".weight").replace(".", "/")), p)
        for name, p in model.named_parameters()
        if id(p) not in inner
    )


def _grouped(parameters: Iterator[tuple[str, Any]]) -> Iterator[ParameterTensor]:
    """Tensors of equal name and shape once, with their number; a stack of matrices as one tall matrix."""
    counts: dict[tuple[str, int, int], int] = {}
    for name, parameter in parameters:
        sizes = [int(size) for size in parameter.shape]
        rows, columns = (math.prod(sizes), 1) if len(sizes) < 2 else (math.prod(sizes[:-1]), sizes[-1])
        counts[name, rows, columns] = counts.get((name, rows, columns), 0) + 1
    for (name, rows, columns), count in counts.items():
        yield ParameterTensor(name=name, rows=rows, columns=columns, count=count, split=Split.REPLICATED)


# --- traits


def _position(model: Any) -> Position:
    """A learned table limits the length of a sample; nothing else of it matters here."""
    tables = [name for name, p in model.named_parameters() if re.search(r"pos|wpe", name) and len(p.shape) == 2]
    return Position.LEARNED if tables else Position.ROTARY


def _kernels(model: Any) -> tuple[Attention, ...]:
    """A trace follows SDPA, whose fused kernel keeps what flash attention keeps."""
    if not model._supports_sdpa:
        return ()
    return (Attention.SDPA, Attention.FLASH) if model._supports_flash_attn else (Attention.SDPA,)


def _notes(model_type: str, model: Any, *, unknown_routing: bool) -> tuple[str, ...]:
    """What the answer has to say about a traced model."""
    notes = [
        f"dsplan has no formulas for `{model_type}`: its parameters and activations were traced with {versions()}, "
        "its compute is 2 FLOPs per matrix element and token and attention by heads x head size",
    ]
    if unknown_routing:
        notes.append("how many experts a token visits is not known: all of them are taken as active")
    if any(hasattr(sys.modules[type(model).__module__], kernel) for kernel in STATE_SPACE_KERNELS):
        notes.append(
            "its state-space layers were traced with transformers' own torch code; where their CUDA kernels are "
            "installed they keep less"
        )
    return tuple(notes)
