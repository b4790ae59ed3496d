"""What the layers of LitGPT and torchtune keep for backward, read off the frameworks themselves.

    pip install litgpt==0.5.13 torchtune==0.6.1
    python tests/oracles/trace_foreign_layers.py > tests/golden/foreign_layers.toml

Bytes per token of one layer, from the difference between models of four and two layers. Counted as on a GPU: a dropout
mask takes one byte, and the output of attention is read by the next product without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

TOKENS = 256
SHAPE = {"hidden": 256, "heads": 4, "ffn": 704, "vocab": 1024}
QV = {"query": True, "value": True}
ALL = {"query": True, "key": True, "value": True, "projection": True, "mlp": True}
Case = tuple[str, dict[str, Any], Callable[[int], nn.Module]]


def kept_bytes(model: nn.Module, forward: Callable[[torch.Tensor], Any]) -> int:
    """Bytes of the distinct storages that autograd saves, without parameters, buffers and copied attention outputs."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    outputs: list[torch.Tensor] = []
    saved: dict[int, torch.Tensor] = {}
    attention, dropout = nn.functional.scaled_dot_product_attention, nn.functional.dropout

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        outputs.append(attention(*args, **kwargs))
        return outputs[-1]

    def masked(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    nn.functional.scaled_dot_product_attention, nn.functional.dropout = recorded, masked
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = forward(torch.randint(0, SHAPE["vocab"], (1, TOKENS)))
    finally:
        nn.functional.scaled_dot_product_attention, nn.functional.dropout = attention, dropout
    views = [out.detach().transpose(1, 2).reshape(TOKENS, -1) for out in outputs]
    copies = {key for key, t in saved.items() if _is_copy(t, views) and key not in _storages(outputs)}
    del result
    return sum(t.untyped_storage().nbytes() for key, t in saved.items() if key not in copies)


def _storages(tensors: list[torch.Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors}


def _is_copy(tensor: torch.Tensor, views: list[torch.Tensor]) -> bool:
    flat = tensor.detach().reshape(TOKENS, -1) if tensor.numel() == TOKENS * SHAPE["hidden"] else None
    return flat is not None and any(flat.dtype == v.dtype and torch.equal(flat, v) for v in views)


def litgpt_model(layers: int, *, gated: bool, kv_heads: int, lora: dict[str, bool] | None, second: bool) -> nn.Module:
    import litgpt.adapter_v2
    import litgpt.lora
    import litgpt.model

    fields: dict[str, Any] = {
        "n_layer": layers, "n_embd": SHAPE["hidden"], "n_head": SHAPE["heads"], "n_query_groups": kv_heads,
        "block_size": TOKENS, "vocab_size": SHAPE["vocab"], "padded_vocab_size": SHAPE["vocab"],
        "rotary_percentage": 1.0, "intermediate_size": SHAPE["ffn"], "bias": not gated,
        "parallel_residual": not gated, "shared_attention_norm": False,
        "norm_class_name": "RMSNorm" if gated else "LayerNorm",
        "mlp_class_name": "LLaMAMLP" if gated else "GptNeoxMLP",
    }  # fmt: skip
    if lora:
        switches = {f"lora_{site}": lora.get(site, False) for site in ("query", "key", "value", "projection", "mlp")}
        model = litgpt.lora.GPT(litgpt.lora.Config(**fields, **switches, lora_r=8, lora_dropout=0.05))
        litgpt.lora.mark_only_lora_as_trainable(model)
    elif second:
        model = litgpt.adapter_v2.GPT(litgpt.adapter_v2.Config(**fields, adapter_start_layer=layers))
        litgpt.adapter_v2.mark_only_adapter_v2_as_trainable(model)
    else:
        model = litgpt.model.GPT(litgpt.model.Config(**fields))
    model.max_seq_length = TOKENS
    return model


def torchtune_model(layers: int, *, compiled: bool, lora: bool) -> nn.Module:
    from torchtune.models.llama3_2 import llama3_2, lora_llama3_2
    from torchtune.modules.peft import get_adapter_params, set_trainable_params

    fields = {
        "vocab_size": SHAPE["vocab"], "num_layers": layers, "num_heads": SHAPE["heads"], "num_kv_heads": 2,
        "embed_dim": SHAPE["hidden"], "max_seq_len": TOKENS, "intermediate_dim": SHAPE["ffn"],
    }  # fmt: skip
    if lora:
        sites = ["q_proj", "v_proj", "output_proj"]
        model = lora_llama3_2(sites, apply_lora_to_mlp=True, lora_rank=8, lora_alpha=16.0, **fields)
        set_trainable_params(model, get_adapter_params(model))
    else:
        model = llama3_2(**fields)
    if compiled:
        for layer in model.layers:
            layer.compile()
    return model


def layer_bytes_per_token(build: Callable[[int], nn.Module], **forward: Any) -> float:
    """The slope in the number of layers."""
    found = []
    for layers in (2, 4):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        model = build(layers).train()
        torch.set_default_dtype(torch.float32)
        found.append(kept_bytes(model, lambda ids, model=model: model(ids, **forward)))
    return (found[1] - found[0]) / 2 / TOKENS


def litgpt_cases() -> Iterator[Case]:
    """Gated and plain blocks, with and without grouped queries, in full and with adapters."""
    for gated, kv_heads in ((True, 4), (True, 1), (False, 4)):
        about = {"layers": "litgpt", "gated": gated, "kv_heads": kv_heads}
        for method, lora in (("full", None), ("lora r8 (q,v)", QV), ("lora r8 all-linear", ALL), ("adapter_v2", None)):
            build = partial(litgpt_model, gated=gated, kv_heads=kv_heads, lora=lora, second=method == "adapter_v2")
            yield f"litgpt {'gated' if gated else 'plain'} {kv_heads} {method}", {**about, "method": method}, build


def torchtune_cases() -> Iterator[Case]:
    """Eager and compiled, in full and with adapters."""
    for compiled in (False, True):
        for method in ("full", "lora"):
            about = {"layers": "torchtune", "gated": True, "kv_heads": 2, "compiled": compiled, "method": method}
            build = partial(torchtune_model, compiled=compiled, lora=method == "lora")
            yield f"torchtune {'compiled' if compiled else 'eager'} {method}", about, build


def toml_value(value: object) -> str:
    return json.dumps(value)


def main() -> None:
    """Every case as a TOML table."""
    print('versions = "litgpt 0.5.13, torchtune 0.6.1, torch 2.13"')
    for name, about, build in (*litgpt_cases(), *torchtune_cases()):
        forward = {"lm_head_chunk_size": 128} if about["layers"] == "litgpt" else {}
        size = layer_bytes_per_token(build, **forward)
        print(f"\n[[case]]\nname = {toml_value(name)}")
        for key, value in {**about, **SHAPE}.items():
            print(f"{key} = {toml_value(value)}")
        print(f"layer_bytes_per_token = {size:.1f}")


if __name__ == "__main__":
    main()
