"""A Hugging Face `config.json` to a `ModelShape`: what does this architecture consist of?

In: the parsed JSON object. Out: geometry and traits, with the defaults of transformers 5.24's config classes. How each
model_type is read is a section of `catalog/data/families.toml`; the few types whose fields need arithmetic have a
function in `ADJUST`. Unknown keys are ignored, as transformers does; a value that cannot be is an error with its path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.catalog.models import autotp_row, family_names, family_row, fused_loss_types
from planner.errors import PlannerError
from planner.records.model import AutoTP, ModelShape, Norm, Position
from planner.spec.config_reader import ConfigReader

NESTED_TEXT_TYPES = {"gemma3": "gemma3_text"}
"""Multimodal types whose language model is planned, and the type of that language model."""

USUAL_FIELDS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn_hidden": ("intermediate_size",),
    "vocab": ("vocab_size",),
    "max_positions": ("max_position_embeddings",),
    "activation": ("hidden_act",),
    "tied": ("tie_word_embeddings",),
    "experts": ("num_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_ffn_hidden": ("moe_intermediate_size",),
    "shared_ffn_hidden": ("shared_expert_intermediate_size",),
}
"""Our name to the key most configs use; a family names its own where they differ."""

SWITCHES = ("qkv_bias", "attention_output_bias", "mlp_bias", "head_bias", "parallel_block", "qk_norm")
"""Traits that are a fixed yes or no of the family, or the name of a boolean key."""

FIXED_TRAITS = (
    "fused_qkv",
    "fused_gate_up",
    "embedding_norm",
    "embedding_scale",
    "position_offset",
    "qk_norm_width",
    "qk_norm_bias",
)
USUAL_DROPOUT: Mapping[str, str] = {"attention": "attention_dropout"}
HANDED_ON = ("sliding_window", "sliding_window_pattern", "final_logit_softcapping", "attn_logit_softcapping")


def shape_from_config(config: Mapping[str, Any], *, name: str, source: str, hub_id: str | None = None) -> ModelShape:
    """The shape that `config` describes; raises PlannerError with the JSON path of what is wrong."""
    model_type, fields, path, notes = _language_model(config)
    if model_type not in family_names():
        from planner.trace.shape import traced_shape

        shape = traced_shape(
            model_type, fields, name=name, source=source, hub_id=hub_id, path=path, formulas=family_names()
        )
        fused = (("fused_loss", True),) if model_type in fused_loss_types() else ()
        return replace(shape, traits=(*shape.traits, *fused), notes=(*notes, *shape.notes, *_notes(config)))
    family = family_row(model_type)
    read = ConfigReader(fields, {**USUAL_FIELDS, **family.get("fields", {})}, family.get("defaults", {}), path)
    if not read.given("layers") and not read.given("hidden"):
        raise PlannerError(
            f"a config of type `{model_type}` names neither `{read.key('layers')}` nor `{read.key('hidden')}` @ {path}",
            hint="give the model's own config.json, as transformers writes it",
        )
    hidden, heads = read.count("hidden"), read.count("heads")
    head_dim = _head_dim(read, family, hidden, heads)
    kv_heads = read.count("kv_heads", default=heads)
    if kv_heads > heads or heads % kv_heads:
        read.refuse("kv_heads", kv_heads, f"a divisor of the `{heads}` attention heads")
    norm = Norm(family.get("norm", "rmsnorm"))
    switches: dict[str, Any] = {switch: read.switch(family.get(switch, False)) for switch in SWITCHES}
    tied = read.flag("tied")
    autotp = autotp_row(model_type)
    multiple = family.get("ffn_multiple")
    ffn_hidden = read.count("ffn_hidden", default=hidden * multiple if multiple else None)
    shape = ModelShape(
        name=name,
        model_type=model_type,
        hub_id=hub_id,
        layers=read.count("layers", most=10_000),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden=ffn_hidden,
        vocab=read.count("vocab"),
        max_positions=read.count("max_positions", most=10**9),
        tied_embeddings=tied,
        gated_mlp=family.get("gated_mlp", True),
        activation=read.text("activation"),
        norm=norm,
        norms_per_layer=family.get("norms_per_layer", 2),
        final_norm=True,
        position=Position(family.get("position", "rotary")),
        autotp=AutoTP(autotp.outcome),
        source=source,
        traits=_traits(read, family, norm=norm, tied=tied, model_type=model_type),
        hf_config=read.kept(
            (*family.get("keep", ()), *USUAL_DROPOUT.values()),
            [family[s] for s in SWITCHES if isinstance(family.get(s), str)],
        ),
        notes=(*notes, *_notes(config)),
        **switches,
    )
    if family.get("mixture", False):
        shape = _with_experts(shape, read, family)
    adjust = ADJUST.get(model_type)
    return adjust(shape, read) if adjust else shape


def _language_model(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str, tuple[str, ...]]:
    """The model_type, the fields, their path and what had to be decided; descends into `text_config`."""
    if not isinstance(config, Mapping):
        raise PlannerError("the config is no JSON object @ $", hint="give the model's own config.json")
    model_type = config.get("model_type")
    if model_type is None:
        raise PlannerError(
            "the config names no `model_type` @ $", hint="it is not the config.json of a transformers model"
        )
    if not isinstance(model_type, str):
        raise PlannerError(
            f"`{model_type!r}` is no model type @ $.model_type", hint=f"it is a text, one of {_supported()}"
        )
    if model_type not in NESTED_TEXT_TYPES and (model_type in family_names() or not _nested_type(config)):
        return model_type, config, "$", ()
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        raise PlannerError(
            f"a config of type `{model_type}` holds no object `text_config` @ $",
            hint="give the model's own config.json",
        )
    inner_type = inner.get("model_type", NESTED_TEXT_TYPES.get(model_type))
    note = f"only the language model of {model_type} is planned: its vision tower and projector are left out"
    return str(inner_type), {**_tie(config), **inner}, "$.text_config", (note,)


def _nested_type(config: Mapping[str, Any]) -> object:
    """The model_type of a multimodal config's language model, if it names one."""
    inner = config.get("text_config")
    return inner.get("model_type") if isinstance(inner, Mapping) else None


def _tie(config: Mapping[str, Any]) -> dict[str, Any]:
    """The outer `tie_word_embeddings`, which a multimodal config may give in place of the inner one."""
    return {key: config[key] for key in ("tie_word_embeddings",) if config.get(key) is not None}


def _supported() -> str:
    return ", ".join((*family_names(), *NESTED_TEXT_TYPES))


def _head_dim(read: ConfigReader, family: Mapping[str, Any], hidden: int, heads: int) -> int:
    """The given head size, else hidden / heads, which must divide."""
    if not family.get("head_dim_is_derived", False):
        given = read.count("head_dim", default=0)
        if given:
            return given
    if hidden % heads:
        read.refuse("heads", heads, f"a divisor of `{read.key('hidden')}` `{hidden}`")
    return hidden // heads


def _traits(
    read: ConfigReader, family: Mapping[str, Any], *, norm: Norm, tied: bool, model_type: str
) -> tuple[tuple[str, Any], ...]:
    """What only some architectures have, sorted by name."""
    traits: dict[str, Any] = {key: family[key] for key in FIXED_TRAITS if key in family}
    traits["norm_bias"] = family.get("norm_bias", norm is Norm.LAYER)
    autotp = autotp_row(model_type)
    if autotp.outcome != "refused":
        traits["vocab_parallel_head"] = tied and autotp.tied == "vocabulary"
        traits["replicated_head"] = not tied and autotp.head == "replicated"
    else:
        traits["autotp_reason"] = autotp.reason
    traits["fused_loss"] = model_type in fused_loss_types()
    for place, key in family.get("dropout", USUAL_DROPOUT).items():
        traits[f"{place}_dropout"] = read.share(key)
    for key in HANDED_ON:
        value = read.optional_number(key) if key in family.get("keep", ()) else None
        if value is not None and (key != "sliding_window" or read.switch("use_sliding_window", default=True)):
            traits[key] = value
    bare = () if family.get("norm_weight", True) else (("norm_weight", False),)
    return tuple(sorted((*bare, *((key, value) for key, value in traits.items() if value))))


def _notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the config says that a training plan does not follow."""
    notes = []
    if config.get("quantization_config"):
        notes.append("the config describes quantised weights; the plan trains unquantised ones")
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        architecture = architectures[0]
        if not architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
            notes.append(f"{architecture} is planned as a causal language model with its output head")
    return tuple(notes)


def _with_experts(shape: ModelShape, read: ConfigReader, family: Mapping[str, Any]) -> ModelShape:
    """Experts and, where `decoder_sparse_step` or `mlp_only_layers` say so, layers with a dense MLP."""
    experts, chosen = read.count("experts"), read.count("experts_per_token")
    if chosen > experts:
        read.refuse("experts_per_token", chosen, f"at most the `{experts}` experts")
    step = read.plain_count("decoder_sparse_step", default=1)
    dense_only = read.indices("mlp_only_layers")
    dense = sum(1 for layer in range(shape.layers) if layer in dense_only or (layer + 1) % step)
    if dense == shape.layers:
        read.refuse_key("decoder_sparse_step", step, f"at most the `{shape.layers}` layers, or no layer has experts")
    return replace(
        shape,
        experts=experts,
        experts_per_token=chosen,
        expert_ffn_hidden=read.count("expert_ffn_hidden"),
        shared_ffn_hidden=read.count("shared_ffn_hidden") if family.get("shared_expert", False) else 0,
        dense_layers=dense,
        ffn_hidden=shape.ffn_hidden if dense else 0,
    )


# --- types whose fields need arithmetic


def _falcon(shape: ModelShape, read: ConfigReader) -> ModelShape:
    """Key/value heads and norms depend on three switches (FalconAttention, FalconDecoderLayer)."""
    new = read.switch("new_decoder_architecture")
    kv_heads = shape.kv_heads if new else (1 if read.switch("multi_query", default=True) else shape.heads)
    norms = read.plain_count("num_ln_in_parallel_attn", default=2 if new else 1)
    norms = norms if shape.parallel_block else 2
    position = Position.ALIBI if read.switch("alibi") else Position.ROTARY
    traits = tuple(sorted((*shape.traits, ("new_decoder_architecture", new))))
    return replace(shape, kv_heads=kv_heads, norms_per_layer=norms, position=position, traits=traits)


def _opt(shape: ModelShape, read: ConfigReader) -> ModelShape:
    """OPT-350M alone has a narrower embedding, norms after the block, and no final norm."""
    width = read.plain_count("word_embed_proj_dim", default=shape.hidden)
    before = read.switch("do_layer_norm_before", default=True)
    removed = read.switch("_remove_final_layer_norm")
    extra: list[tuple[str, Any]] = [("embedding_width", width)] if width != shape.hidden else []
    if not before:
        extra.append(("post_norm", True))
    return replace(shape, final_norm=before and not removed, traits=tuple(sorted((*shape.traits, *extra))))


def _gpt_bigcode(shape: ModelShape, read: ConfigReader) -> ModelShape:
    return replace(shape, kv_heads=1 if read.switch("multi_query", default=True) else shape.heads)


def _stablelm(shape: ModelShape, read: ConfigReader) -> ModelShape:
    return replace(shape, norms_per_layer=1) if shape.parallel_block else shape


ADJUST: Mapping[str, Callable[[ModelShape, ConfigReader], ModelShape]] = {
    "falcon": _falcon,
    "opt": _opt,
    "gpt_bigcode": _gpt_bigcode,
    "stablelm": _stablelm,
}
