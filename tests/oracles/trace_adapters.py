#!/usr/bin/env python3
"""Trace what one training step of a real transformers model with peft's LoRA adapters keeps, without a GPU or weights.

    trace_adapters.py > golden/adapter_activations.toml     trace every case below (minutes)
    trace_adapters.py --only llama gpt2                     print the rows of some cases

The method and the four quantities are those of trace_activations.py. The base model is frozen and of the run's dtype,
and so are the adapters, as under DeepSpeed's bf16 and fp16 engines; dropout is 0.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(Path(__file__).parent))
import trace_activations as full

RANK = 8
ALL_LINEAR = "all-linear"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ONLY_ATTENTION = ("mixtral", "qwen3_moe")
"""Types whose `all-linear` peft turns into adapters on the stacked experts, which a plan does not use."""
TARGETS: dict[str, list[str]] = {
    "llama": ["q_proj", "v_proj"],
    "mistral window": ["q_proj", "v_proj"],
    "qwen2": ["q_proj", "v_proj"],
    "qwen3": ["q_proj", "v_proj"],
    "gemma": ["q_proj", "v_proj"],
    "gemma2": ["q_proj", "v_proj"],
    "gemma3_text": ["q_proj", "v_proj"],
    "phi": ["q_proj", "v_proj", "fc1", "fc2"],
    "phi3": ["qkv_proj"],
    "gpt2": ["c_attn"],
    "gpt_neox": ["query_key_value"],
    "gptj": ["q_proj", "v_proj"],
    "opt": ["q_proj", "v_proj"],
    "falcon new": ["query_key_value"],
    "bloom": ["query_key_value"],
    "starcoder2": ["q_proj", "v_proj"],
    "stablelm": ["q_proj", "v_proj"],
    "olmo2": ["q_proj", "v_proj"],
    "cohere qk_norm": ["q_proj", "v_proj"],
    "glm4": ["q_proj", "v_proj"],
    "mixtral": ["q_proj", "v_proj"],
    "qwen2_moe": ["q_proj", "v_proj"],
    "qwen3_moe": ["q_proj", "v_proj"],
}
"""peft's own default targets of the type, or of the type it resembles where peft has none."""


def with_adapters(model: torch.nn.Module, targets: list[str] | str, rank: int, precision: str) -> torch.nn.Module:
    """The model wrapped by peft; on fake tensors, so nothing can be moved, and nothing needs to be."""
    moved = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *arguments, **options: self  # type: ignore[method-assign, assignment]
    torch.set_default_dtype(full.DTYPES[precision])
    try:
        config = peft.LoraConfig(r=rank, target_modules=targets, lora_dropout=0.0)
        return peft.get_peft_model(model, config, autocast_adapter_dtype=False)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.nn.Module.to = moved  # type: ignore[method-assign]


def trace(
    config: dict[str, Any],
    *,
    layers: int,
    micro_batch: int,
    seq_len: int,
    checkpointing: str,
    attention: str,
    targets: list[str] | str,
    precision: str = "bf16",
) -> dict[str, int]:
    """Bytes alive at four instants of one step."""
    transformers.logging.set_verbosity_error()
    full.masking.find_packed_sequence_indices = lambda position_ids: None  # see trace_activations.py
    with FakeTensorMode():
        model = full.build(config, layers, attention, precision)
        model = with_adapters(model, targets, RANK, precision)
        if checkpointing == "full":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return full.measure(model, layers, micro_batch, seq_len)


def runs(name: str) -> Iterator[dict[str, Any]]:
    """The settings every case is traced with."""
    attention = "eager" if full.CASES[name]["model_type"] in full.EAGER_ONLY else "sdpa"
    for targets in (TARGETS[name], ATTENTION if name in ONLY_ATTENTION else ALL_LINEAR):
        for checkpointing in ("none", "full"):
            for seq_len in (1024, 2048):
                for micro_batch in (1, 2):
                    yield {
                        "layers": 3,
                        "micro_batch": micro_batch,
                        "seq_len": seq_len,
                        "checkpointing": checkpointing,
                        "attention": attention,
                        "targets": targets,
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(TARGETS), help="names of cases")
    names = parser.parse_args().only
    print("# Written by tests/oracles/trace_adapters.py, which says what the numbers are. Bytes; see `columns`.")
    print(f'\ntorch = "{torch.__version__.split("+")[0]}"\ntransformers = "{transformers.__version__}"')
    print(f'peft = "{peft.__version__}"\nrank = {RANK}')
    print('source = "traced: torch FakeTensorMode on the transformers model classes wrapped by peft"')
    print('columns = ["layers", "micro_batch", "seq_len", "checkpointing", "attention", "targets",')
    print('           "forward_end", "forward_peak", "backward_head", "backward_layer"]')
    for name in names:
        fields = {key: value for key, value in full.CASES[name].items() if value is not None}
        nulls = [key for key, value in full.CASES[name].items() if value is None]
        print(f'\n[[case]]\nname = "{name}"\nnulls = {full.toml_value(nulls)}')
        print(f"config = {{ {', '.join(f'{key} = {full.toml_value(value)}' for key, value in fields.items())} }}")
        print("traces = [")
        for settings in runs(name):
            measured = trace(full.CASES[name], **settings)
            print(f"  {full.toml_value([*settings.values(), *measured.values()])},", flush=True)
        print("]")


if __name__ == "__main__":
    main()
