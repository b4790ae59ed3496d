#!/usr/bin/env python3
"""Trace what one training step of a real transformers model keeps in memory, without a GPU and without weights.

    trace_activations.py > golden/activations.toml          trace every case below (minutes)
    trace_activations.py --without-formulas > golden/traced_activations.toml
    trace_activations.py --only llama gpt2                  print the rows of some cases

The model is built under FakeTensorMode (tensors without storage); every storage an operator returns is counted until it
is freed. Parameters and their gradients are not counted, so what remains is the activation part of the step:
activations, logits and the loss. Four numbers a trace, in bytes:

    forward_end      alive after forward, when the loss alone is held (as in transformers' Trainer)
    forward_peak     the most that was alive during forward
    backward_head    the most that was alive until the gradient leaves the head and the final norm
    backward_layer   the most that was alive afterwards

Word embeddings are untied in all cases: the head's part of a tied embedding's gradient would be held through the whole
backward.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
import transformers
import transformers.masking_utils as masking
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LAYER_KEYS = {
    "gpt2": "n_layer",
    "gptj": "n_layer",
    "bloom": "n_layer",
    "gpt_bigcode": "n_layer",
    "gpt_neo": "num_layers",
    "mpt": "n_layers",
    "codegen": "n_layer",
    "xglm": "num_layers",
}
QUANTITIES = ("forward_end", "forward_peak", "backward_head", "backward_layer")


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operators return, while they live, but those of weights' gradients."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        ignored = [t.untyped_storage() for t in (*model.parameters(), *model.buffers())]
        self.known = {storage._cdata: (-1, weakref.ref(storage)) for storage in ignored}
        self.changes: list[tuple[int, int]] = []  # (number of the storage, signed bytes)
        self.gradients: set[int] = set()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._drop_gradient)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size, number = storage._cdata, storage.nbytes(), len(self.changes)
        if key in self.known and self.known[key][1]() is storage:
            return

        def freed(reference: weakref.ref) -> None:
            self.changes.append((number, -size))
            if self.known[key][1] is reference:
                del self.known[key]

        self.known[key] = (number, weakref.ref(storage, freed))
        self.changes.append((number, size))

    def _drop_gradient(self, parameter: torch.nn.Parameter) -> None:
        self.gradients.add(self.known[parameter.grad.untyped_storage()._cdata][0])
        parameter.grad = None

    def levels(self, start: int) -> list[int]:
        """Bytes alive after every change, beyond those alive after `start` changes."""
        alive = [0, *accumulate(0 if number in self.gradients else size for number, size in self.changes)]
        return [size - alive[start] for size in alive]


def build(config: dict[str, Any], layers: int, attention: str, precision: str) -> torch.nn.Module:
    """The model on fake tensors; must be called inside FakeTensorMode."""
    fields = dict(config)
    model_type = fields.pop("model_type")
    fields[LAYER_KEYS.get(model_type, "num_hidden_layers")] = layers
    fields.setdefault("tie_word_embeddings", False)
    if model_type == "gpt_neo":
        fields["attention_types"] = [[["global"], layers]]
    settings = AutoConfig.for_model(model_type, **fields)
    settings.use_cache = False
    torch.set_default_dtype(DTYPES[precision])
    model = AutoModelForCausalLM.from_config(settings, attn_implementation=attention)
    torch.set_default_dtype(torch.float32)
    return model.train()


def decoder_layers(model: torch.nn.Module, layers: int) -> torch.nn.ModuleList:
    """The list of decoder layers: the first module list of that length."""
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers)


def trace(
    config: dict[str, Any],
    *,
    layers: int,
    micro_batch: int,
    seq_len: int,
    checkpointing: str = "none",
    attention: str = "sdpa",
    precision: str = "bf16",
) -> dict[str, int]:
    """Bytes alive at four instants of one step."""
    transformers.logging.set_verbosity_error()
    # Fake tensors cannot prove that a causal mask is unnecessary, so an s x s mask would be saved in every layer.
    masking.find_packed_sequence_indices = lambda position_ids: None
    with FakeTensorMode():
        model = build(config, layers, attention, precision)
        if checkpointing == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return measure(model, layers, micro_batch, seq_len)


def measure(model: torch.nn.Module, layers: int, micro_batch: int, seq_len: int) -> dict[str, int]:
    """One step of a model on fake tensors; must be called inside FakeTensorMode."""
    instants: dict[str, int] = {}
    live = LiveBytes(model)

    def gradient_leaves_head(_: torch.Tensor) -> None:
        instants["layers"] = len(live.changes)

    def watch(module: torch.nn.Module, args: Any, output: Any) -> None:
        if "watched" not in instants:  # the first call only: a checkpointed layer runs again in backward
            instants["watched"] = 1
            (output[0] if isinstance(output, tuple) else output).register_hook(gradient_leaves_head)

    decoder_layers(model, layers)[-1].register_forward_hook(watch)
    with live:
        tokens = torch.randint(0, 100, (micro_batch, seq_len))
        start = len(live.changes)
        loss = model(input_ids=tokens, labels=tokens).loss
        end = len(live.changes)
        loss.backward()
    levels, head = live.levels(start), instants["layers"]
    return {
        "forward_end": levels[end],
        "forward_peak": max(levels[start : end + 1]),
        "backward_head": max(levels[end : head + 1]),
        "backward_layer": max(levels[head:]),
    }


ROW = {"vocab_size": 8192, "max_position_embeddings": 8192}
WIDE = {**ROW, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}
GROUPED = {**WIDE, "num_key_value_heads": 2}
PLAIN = {**WIDE, "intermediate_size": 1024}
OLD = {
    "n_embd": 256,
    "n_head": 8,
    "n_positions": 8192,
    "vocab_size": 8192,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
}
EXPERTS = {**GROUPED, "num_experts": 8, "moe_intermediate_size": 192, "decoder_sparse_step": 1}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **GROUPED},
    "llama multi-head": {"model_type": "llama", **WIDE},
    "mistral": {"model_type": "mistral", **GROUPED, "sliding_window": None},
    "mistral window": {"model_type": "mistral", **GROUPED, "sliding_window": 512},
    "mistral at its window": {"model_type": "mistral", **GROUPED, "sliding_window": 1024},
    "qwen2": {"model_type": "qwen2", **GROUPED},
    "qwen3": {"model_type": "qwen3", **GROUPED, "head_dim": 64},
    "gemma": {"model_type": "gemma", **GROUPED, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 1024},
    "gemma2": {"model_type": "gemma2", **GROUPED, "head_dim": 64, "intermediate_size": 1024, "sliding_window": 4096},
    "gemma3_text": {
        "model_type": "gemma3_text",
        **GROUPED,
        "head_dim": 64,
        "intermediate_size": 1024,
        "sliding_window": 4096,
    },
    "gemma3_text window": {
        "model_type": "gemma3_text",
        **GROUPED,
        "head_dim": 64,
        "sliding_window": 512,
        "sliding_window_pattern": 2,
    },
    "phi": {"model_type": "phi", **PLAIN},
    "phi qk_layernorm": {"model_type": "phi", **PLAIN, "qk_layernorm": True},
    "phi3": {"model_type": "phi3", **GROUPED, "pad_token_id": 0, "sliding_window": None},
    "gpt2": {"model_type": "gpt2", **OLD},
    "gpt_neo": {
        "model_type": "gpt_neo",
        **ROW,
        "hidden_size": 256,
        "num_heads": 8,
    },
    "gpt_neox": {"model_type": "gpt_neox", **PLAIN},
    "gpt_neox sequential": {"model_type": "gpt_neox", **PLAIN, "use_parallel_residual": False},
    "gptj": {"model_type": "gptj", **OLD, "rotary_dim": 16},
    "gpt_bigcode": {"model_type": "gpt_bigcode", **OLD},
    "opt": {
        "model_type": "opt",
        **ROW,
        "hidden_size": 256,
        "word_embed_proj_dim": 256,
        "ffn_dim": 1024,
        "num_attention_heads": 8,
        "dropout": 0.0,
    },
    "opt after": {
        "model_type": "opt",
        **ROW,
        "hidden_size": 256,
        "word_embed_proj_dim": 128,
        "ffn_dim": 1024,
        "num_attention_heads": 8,
        "dropout": 0.0,
        "do_layer_norm_before": False,
    },
    "falcon": {"model_type": "falcon", **WIDE, "multi_query": True},
    "falcon new": {"model_type": "falcon", **WIDE, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon alibi": {"model_type": "falcon", **WIDE, "alibi": True, "multi_query": False, "parallel_attn": False},
    "falcon heads": {"model_type": "falcon", **WIDE, "multi_query": False},
    "bloom": {"model_type": "bloom", "hidden_size": 256, "n_head": 8, "vocab_size": 8192},
    "mpt": {"model_type": "mpt", "d_model": 256, "n_heads": 8, "vocab_size": 8192, "max_seq_len": 8192},
    "starcoder2": {"model_type": "starcoder2", **PLAIN, "num_key_value_heads": 2, "sliding_window": None},
    "stablelm": {"model_type": "stablelm", **GROUPED},
    "stablelm parallel": {"model_type": "stablelm", **GROUPED, "use_parallel_residual": True, "qk_layernorm": True},
    "olmo": {"model_type": "olmo", **WIDE},
    "olmo2": {"model_type": "olmo2", **WIDE},
    "granite": {"model_type": "granite", **GROUPED},
    "cohere": {"model_type": "cohere", **GROUPED},
    "cohere qk_norm": {"model_type": "cohere", **GROUPED, "use_qk_norm": True},
    "smollm3": {"model_type": "smollm3", **GROUPED, "pad_token_id": 0},
    "glm": {"model_type": "glm", **GROUPED, "head_dim": 32, "pad_token_id": 0},
    "glm4": {"model_type": "glm4", **GROUPED, "head_dim": 32, "pad_token_id": 0},
    "seed_oss": {
        "model_type": "seed_oss",
        **GROUPED,
        "head_dim": 64,
        "attention_dropout": 0.0,
        "residual_dropout": 0.0,
    },
    "internlm3": {"model_type": "internlm3", **GROUPED, "head_dim": 32},
    "ernie4_5": {"model_type": "ernie4_5", **GROUPED, "head_dim": 32},
    "mixtral": {"model_type": "mixtral", **GROUPED, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **EXPERTS,
        "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 704,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "num_experts_per_tok": 4, "head_dim": 64},
    "olmoe": {"model_type": "olmoe", **GROUPED, "num_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 192},
}
# Values as wide as queries: for others a CPU has no fused kernel, and would keep every score.
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48}
ROUTED = {**WIDE, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
WITHOUT_FORMULAS: dict[str, dict[str, Any]] = {
    "persimmon": {"model_type": "persimmon", **PLAIN},
    "nemotron": {"model_type": "nemotron", **PLAIN, "num_key_value_heads": 2},
    "exaone4": {"model_type": "exaone4", **GROUPED, "sliding_window": 512, "sliding_window_pattern": 4},
    "hunyuan_v1_dense": {"model_type": "hunyuan_v1_dense", **GROUPED, "head_dim": 32, "pad_token_id": 0},
    "olmo3": {"model_type": "olmo3", **GROUPED, "sliding_window": 512},
    "cohere2": {"model_type": "cohere2", **GROUPED, "sliding_window": 512, "head_dim": 32},
    "granitemoe": {"model_type": "granitemoe", **GROUPED, "num_local_experts": 8, "num_experts_per_tok": 2},
    "codegen": {"model_type": "codegen", **OLD, "rotary_dim": 16},
    "biogpt": {
        "model_type": "biogpt",
        **PLAIN,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    "xglm": {
        "model_type": "xglm",
        **ROW,
        "d_model": 256,
        "ffn_dim": 1024,
        "attention_heads": 8,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **GROUPED,
        "head_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "intermediate_size": 256,
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        **ROUTED,
        "num_key_value_heads": 2,
        "first_k_dense_replace": 2,
        "head_dim": 32,
        "pad_token_id": 0,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **ROUTED,
        **LATENT,
        "num_key_value_heads": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}
"""Types that dsplan has no formula for and traces itself, at a small depth; here they are traced at a larger one."""
LAYERS = {"gemma3_text window": (3, 5)}
"""Depths other than 2 and 3: here the last layer slides, so the fullest layer is the last."""
EAGER_ONLY = ("gemma2", "bloom", "gpt_neo", "mpt", "gpt_oss", "xglm")
"""`attn_implementation="sdpa"` raises for these."""
BF16_ONLY = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
"""Grouped products of experts have no fp32 kernel on a CPU."""


def runs(name: str) -> Iterator[dict[str, Any]]:
    """The settings every case is traced with."""
    if name in WITHOUT_FORMULAS:
        first = "eager" if name in EAGER_ONLY else "sdpa"
        for checkpointing in ("none", "full"):
            for seq_len in (1024, 2048):
                for micro_batch in (1, 2):
                    yield _run(6, micro_batch, seq_len, checkpointing, first, "bf16")
        return
    model_type = CASES[name]["model_type"]
    first = "eager" if model_type in EAGER_ONLY else "sdpa"
    for checkpointing in ("none", "full"):
        for layers in LAYERS.get(name, (2, 3)):
            for seq_len in (1024, 2048):
                for micro_batch in (1, 2):
                    yield _run(layers, micro_batch, seq_len, checkpointing, first, "bf16")
            if first == "sdpa":
                yield _run(layers, 2, 1024, checkpointing, "eager", "bf16")
            if model_type not in BF16_ONLY:
                yield _run(layers, 2, 1024, checkpointing, first, "fp32")


def _run(
    layers: int, micro_batch: int, seq_len: int, checkpointing: str, attention: str, precision: str
) -> dict[str, Any]:
    return {
        "layers": layers,
        "micro_batch": micro_batch,
        "seq_len": seq_len,
        "checkpointing": checkpointing,
        "attention": attention,
        "precision": precision,
    }


def toml_value(value: Any) -> str:
    """A value in TOML's inline notation."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(toml_value(v) for v in value)}]"
    return str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-formulas", action="store_true", help="the types that dsplan traces itself")
    parser.add_argument("--only", nargs="*", help="names of cases")
    given = parser.parse_args()
    cases = WITHOUT_FORMULAS if given.without_formulas else CASES
    print("# Written by tests/oracles/trace_activations.py, which says what the numbers are. Bytes; see `columns`.")
    print(f'\ntorch = "{torch.__version__.split("+")[0]}"\ntransformers = "{transformers.__version__}"')
    print('source = "traced: torch FakeTensorMode on the transformers model classes"')
    print('columns = ["layers", "micro_batch", "seq_len", "checkpointing", "attention", "precision",')
    print('           "forward_end", "forward_peak", "backward_head", "backward_layer"]')
    for name in given.only or cases:
        fields = {key: value for key, value in cases[name].items() if value is not None}
        nulls = [key for key, value in cases[name].items() if value is None]
        print(f'\n[[case]]\nname = "{name}"\nnulls = {toml_value(nulls)}')
        print(f"config = {{ {', '.join(f'{key} = {toml_value(value)}' for key, value in fields.items())} }}")
        print("traces = [")
        for settings in runs(name):
            measured = trace(cases[name], **settings)
            print(f"  {toml_value([*settings.values(), *measured.values()])},", flush=True)
        print("]")


if __name__ == "__main__":
    main()
