"""The linear modules inside a layer of each architecture, by the names that peft's `target_modules` uses.

In: a model type. Out: our tensor name to the module's path inside its layer. A tensor without a row is no linear
module, so neither an adapter nor bitsandbytes touches it: routers of most types, and the routed experts, which
transformers 5 stores as stacked tensors. Every row is compared with peft on the real classes in
tests/geometry/test_adapters.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import PlannerError

SOURCE = "transformers 5.24, models/<model_type>/modeling_<model_type>.py"

_QKVO = {
    "layer/attention/q": "self_attn.q_proj",
    "layer/attention/k": "self_attn.k_proj",
    "layer/attention/v": "self_attn.v_proj",
    "layer/attention/o": "self_attn.o_proj",
}
_LLAMA = {
    **_QKVO,
    "layer/mlp/gate": "mlp.gate_proj",
    "layer/mlp/up": "mlp.up_proj",
    "layer/mlp/down": "mlp.down_proj",
}
_FUSED_MLP = {
    **_QKVO,
    "layer/mlp/gate_up": "mlp.gate_up_proj",
    "layer/mlp/down": "mlp.down_proj",
}
_FUSED = {
    "layer/attention/qkv": "self_attn.qkv_proj",
    "layer/attention/o": "self_attn.o_proj",
    "layer/mlp/gate_up": "mlp.gate_up_proj",
    "layer/mlp/down": "mlp.down_proj",
}
_GPT2 = {
    "layer/attention/qkv": "attn.c_attn",
    "layer/attention/o": "attn.c_proj",
    "layer/mlp/up": "mlp.c_fc",
    "layer/mlp/down": "mlp.c_proj",
}
_BLOOM = {
    "layer/attention/qkv": "self_attention.query_key_value",
    "layer/attention/o": "self_attention.dense",
    "layer/mlp/up": "mlp.dense_h_to_4h",
    "layer/mlp/down": "mlp.dense_4h_to_h",
}

MODULES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "stablelm", "olmo", "olmo2",
            "granite", "cohere", "smollm3", "seed_oss", "internlm3", "ernie4_5", "mixtral", "qwen3_moe", "olmoe",
        ),
        _LLAMA,
    ),
    "qwen2_moe": {
        **_LLAMA,
        "layer/mlp/shared/gate": "mlp.shared_expert.gate_proj",
        "layer/mlp/shared/up": "mlp.shared_expert.up_proj",
        "layer/mlp/shared/down": "mlp.shared_expert.down_proj",
        "layer/mlp/shared/router": "mlp.shared_expert_gate",
    },
    "phi3": _FUSED,
    "glm": _FUSED_MLP,
    "glm4": _FUSED_MLP,
    "phi": {
        **_QKVO,
        "layer/attention/o": "self_attn.dense",
        "layer/mlp/up": "mlp.fc1",
        "layer/mlp/down": "mlp.fc2",
    },
    "starcoder2": {**_QKVO, "layer/mlp/up": "mlp.c_fc", "layer/mlp/down": "mlp.c_proj"},
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _GPT2),
    "gptj": {
        "layer/attention/q": "attn.q_proj",
        "layer/attention/k": "attn.k_proj",
        "layer/attention/v": "attn.v_proj",
        "layer/attention/o": "attn.out_proj",
        "layer/mlp/up": "mlp.fc_in",
        "layer/mlp/down": "mlp.fc_out",
    },
    "gpt_neo": {
        "layer/attention/q": "attn.attention.q_proj",
        "layer/attention/k": "attn.attention.k_proj",
        "layer/attention/v": "attn.attention.v_proj",
        "layer/attention/o": "attn.attention.out_proj",
        "layer/mlp/up": "mlp.c_fc",
        "layer/mlp/down": "mlp.c_proj",
    },
    "gpt_neox": {
        **_BLOOM,
        "layer/attention/qkv": "attention.query_key_value",
        "layer/attention/o": "attention.dense",
    },
    "opt": {
        **_QKVO,
        "layer/attention/o": "self_attn.out_proj",
        "layer/mlp/up": "fc1",
        "layer/mlp/down": "fc2",
        "embedding_projection": "project_in",
        "head_projection": "project_out",
    },
    **dict.fromkeys(("falcon", "bloom"), _BLOOM),
    "mpt": {
        "layer/attention/qkv": "attn.Wqkv",
        "layer/attention/o": "attn.out_proj",
        "layer/mlp/up": "ffn.up_proj",
        "layer/mlp/down": "ffn.down_proj",
    },
}  # fmt: skip


def linear_modules(model_type: str) -> Mapping[str, str]:
    """Our tensor name to module path; an error rather than a guess where the type has no row."""
    modules = MODULES.get(model_type)
    if modules is None:
        raise PlannerError(
            f"the linear modules of model type `{model_type}` are not known, so no adapter can be planned for it",
            hint=f"`--method full`, or one of {', '.join(sorted(MODULES))}",
        )
    return modules
