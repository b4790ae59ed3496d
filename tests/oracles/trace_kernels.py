#!/usr/bin/env python3
"""Count the kernels of one decoder layer of real transformers models and the bytes they move, without a GPU or weights.

    trace_kernels.py > golden/kernels.toml       trace every case below (minutes)
    trace_kernels.py --only llama gpt2           print the rows of some cases
    trace_kernels.py --operators llama           list the operators of one layer

A model of two and one of three layers run forward and backward on tensors without storage; the difference of their
operators is one layer. An operator that only renames memory, or only allocates it, launches nothing. The others count:

    products         matrix products
    attention        fused attention kernels: 1 forward, 3 backward, where key and value are shared 2 sums more
                     (torch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd)
    elementwise      everything else; layer norm's backward is 2 kernels
                     (aten/src/ATen/native/cuda/layer_norm_kernel.cu)
    values           bytes that the element-wise kernels read and write / 2, per token, without what grows with length
    score_values     what grows: the same per token and position of its context

Bytes are counted once for each distinct tensor an operator reads (a broadcast one as often as it is stored) and each it
writes. Dropout is one kernel, as on a GPU. Gradients of weights and what the engine does with them are not counted but
for the sums over tokens that yield those of norms and biases.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))
import trace_activations as full
import trace_adapters as adapters

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "_grouped_mm"}
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}
FILLS = {"new_zeros", "zeros_like", "ones_like", "full_like", "new_full", "new_ones", "nll_loss_backward"}
PICKED = {"embedding", "embedding_dense_backward", "nll_loss_forward"}
FILLED_FIRST = {"slice_backward", "select_backward"}
"""Two kernels: zeros of the whole, then the gradient of the part copied into them."""
GROUPED_SUMS, ATTENTION_BACKWARD = 2, 3
KINDS = ("products", "attention", "elementwise")
QUANTITIES = (*KINDS, "values", "score_values")
PASSES = ("forward", "backward")


def name_of(operator: Any) -> str:
    return str(operator.overloadpacket).removeprefix("aten.")


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor without what broadcasting repeats."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


class Launches(TorchDispatchMode):
    """The operators that launch a kernel: name, kind, kernels, bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = name_of(func)
        given = _tensors((args, kwargs))
        made = _tensors(result)
        if func.namespace == "prim" or name in ALLOCATIONS or not made:
            return result
        owned = {t.untyped_storage()._cdata for t in given}
        if not func._schema.is_mutable and made and all(t.untyped_storage()._cdata in owned for t in made):
            return result
        moved = _moved(name, given, made, mutable=func._schema.is_mutable)
        self.seen.append((name, *_kind(name, given, made), moved))
        return result


def _kind(name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> tuple[str, int]:
    if name in PRODUCTS:
        return "products", 1
    if "scaled_dot_product" in name:
        if not name.endswith("backward"):
            return "attention", 1
        grouped = given[1].shape[1] != given[2].shape[1]
        return "attention", ATTENTION_BACKWARD + (GROUPED_SUMS if grouped else 0)
    return "elementwise", 2 if name in FILLED_FIRST or _norm_with_weights(name, made) else 1


def _norm_with_weights(name: str, made: list[torch.Tensor]) -> bool:
    """The backward of a layer norm that also yields gradients of its weight."""
    return name == "native_layer_norm_backward" and len(made) > 1


def _moved(name: str, given: list[torch.Tensor], made: list[torch.Tensor], *, mutable: bool) -> int:
    """Bytes read and written."""
    if mutable:  # the first argument is written; copies and fills do not read it
        read = given[1:] if name in ("copy_", "fill_", "zero_") else given
        return sum(map(stored_bytes, read)) + stored_bytes(given[0])
    if name in PICKED:  # of the table or of the log-probabilities, one row or value a token is touched
        return 2 * stored_bytes(given[0] if name.startswith("embedding_") else made[0])
    if name in FILLS:
        return sum(map(stored_bytes, made))
    if name in FILLED_FIRST:
        return sum(map(stored_bytes, made)) + 2 * sum(map(stored_bytes, given))
    again = given[:2] if _norm_with_weights(name, made) else []  # the second kernel reads gradient and input
    return sum(map(stored_bytes, (*given, *made, *again)))


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The distinct tensors of a tree."""
    found: dict[int, torch.Tensor] = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}
    return list(found.values())


@contextmanager
def dropout_of_a_gpu() -> Iterator[None]:
    """Dropout as one kernel that keeps a boolean mask; a CPU runs three."""
    usual = torch.nn.functional.dropout

    def dropout(value: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(value, p, True)[0] if training and p > 0 else value

    torch.nn.functional.dropout = dropout
    try:
        yield
    finally:
        torch.nn.functional.dropout = usual


def step(
    config: dict[str, Any], layers: int, seq_len: int, attention: str, targets: list[str] | str | None
) -> tuple[list[Any], list[Any]]:
    """The operators of forward and of backward of a whole model, two samples."""
    with FakeTensorMode(), dropout_of_a_gpu():
        model = full.build(config, layers, attention, "bf16")
        if targets is not None:
            model = adapters.with_adapters(model, targets, adapters.RANK, "bf16")
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        with Launches() as launches:
            tokens = torch.randint(0, 100, (2, seq_len))
            start = len(launches.seen)
            loss = model(input_ids=tokens, labels=tokens).loss
            end = len(launches.seen)
            loss.backward()
        return launches.seen[start:end], launches.seen[end:]


def layer(
    config: dict[str, Any], seq_len: int, attention: str, targets: list[str] | str | None = None
) -> tuple[Counter, Counter]:
    """The operators of one more layer, forward and backward."""
    transformers.logging.set_verbosity_error()
    full.masking.find_packed_sequence_indices = lambda position_ids: None  # see trace_activations.py
    few, more = (step(config, layers, seq_len, attention, targets) for layers in (2, 3))
    one = [_without(all_of, less, 1) for less, all_of in zip(few, more, strict=True)]
    return one[0], one[1]


def rest(config: dict[str, Any], seq_len: int, attention: str) -> tuple[Counter, Counter]:
    """The operators outside the layers: embedding, masks, final norm, head and loss."""
    layers = layer(config, seq_len, attention)
    whole = step(config, 2, seq_len, attention, None)
    left = [_without(all_of, one.elements(), 2) for one, all_of in zip(layers, whole, strict=True)]
    return left[0], left[1]


def _without(operators: Iterable[Any], others: Iterable[Any], times: int) -> Counter:
    left = Counter(operators)
    for operator, count in Counter(others).items():
        left[operator] -= times * count
    return Counter({operator: count for operator, count in left.items() if count})


def counts(operators: Counter, tokens: int) -> dict[str, float]:
    """Kernels by kind, and the 16-bit values that element-wise ones move, per token."""
    result: dict[str, float] = dict.fromkeys(KINDS, 0)
    moved = 0
    for (_, kind, kernels, size), times in operators.items():
        result[kind] += times * kernels
        moved += times * size if kind == "elementwise" else 0
    return {**result, "values": moved / 2 / tokens}


def trace(
    config: dict[str, Any], attention: str, targets: list[str] | str | None = None
) -> dict[str, dict[str, float]]:
    """The counts of one layer; what grows with the sequence length is told apart by two of them."""
    short, long = 1024, 2048
    lower, upper = (
        [counts(operators, 2 * seq_len) for operators in layer(config, seq_len, attention, targets)]
        for seq_len in (short, long)
    )
    result = {}
    for name, at_short, at_long in zip(PASSES, lower, upper, strict=True):
        slope = (at_long["values"] - at_short["values"]) / (long - short)
        result[name] = {**at_short, "values": at_short["values"] - slope * short, "score_values": slope}
    return result


HIDDEN_KEYS = (
    "hidden_size",
    "n_embd",
    "d_model",
    "num_attention_heads",
    "n_head",
    "n_heads",
    "word_embed_proj_dim",
    "num_heads",
)
CASES: dict[str, dict[str, Any]] = {
    **full.CASES,
    "gptj": {**full.CASES["gptj"], "rotary_dim": 8},
    "gpt2 dropout": {**full.CASES["gpt2"], "resid_pdrop": 0.1},
    "gpt2 gelu": {**full.CASES["gpt2"], "activation_function": "gelu"},
    "opt dropout": {**full.CASES["opt"], "dropout": 0.1},
    "qwen2 alone": {**full.CASES["qwen2"], "num_key_value_heads": 8},
    "gemma2 narrow heads": {**full.CASES["gemma2"], "head_dim": 32},
}
"""As for the activations, and what makes a difference to kernels only."""


REST = ("llama", "gpt2", "gpt_neox", "qwen2", "gemma2", "phi", "opt", "mixtral")
"""Cases whose embedding, head and loss are counted too."""


def twice_as_wide(config: dict[str, Any]) -> dict[str, Any]:
    """The same model with twice the hidden size and query heads; key-value heads and a stated MLP width stay."""
    return {**config, **{key: 2 * config[key] for key in HIDDEN_KEYS if key in config}}


def runs(name: str) -> Iterator[dict[str, Any]]:
    """The settings every case is traced with."""
    first = "eager" if CASES[name]["model_type"] in full.EAGER_ONLY else "sdpa"
    yield {"wide": False, "attention": first, "targets": None}
    yield {"wide": True, "attention": first, "targets": None}
    if first == "sdpa":
        yield {"wide": False, "attention": "eager", "targets": None}
    if name in adapters.TARGETS:
        for targets in (
            adapters.TARGETS[name],
            adapters.ATTENTION if name in adapters.ONLY_ATTENTION else adapters.ALL_LINEAR,
        ):
            yield {"wide": False, "attention": first, "targets": targets}


def traced_row(name: str, settings: dict[str, Any]) -> list[Any]:
    """One row of the golden file."""
    config = twice_as_wide(CASES[name]) if settings["wide"] else CASES[name]
    found = trace(config, settings["attention"], settings["targets"])
    numbers = [round(found[side][quantity], 2) for side in PASSES for quantity in QUANTITIES]
    return [settings["wide"], settings["attention"], settings["targets"] or [], *numbers]


def rest_row(name: str, *, wide: bool) -> list[Any]:
    """What is outside the layers: kernels and values per token."""
    config = twice_as_wide(CASES[name]) if wide else CASES[name]
    attention = "eager" if config["model_type"] in full.EAGER_ONLY else "sdpa"
    found = [counts(operators, 2 * 1024) for operators in rest(config, 1024, attention)]
    return [wide, *(round(side[quantity], 2) for side in found for quantity in (*KINDS, "values"))]


def list_operators(name: str, *, outside: bool) -> None:
    """Every operator of one layer, or outside the layers: how often, its name, kind, kernels, values per token."""
    attention = "eager" if CASES[name]["model_type"] in full.EAGER_ONLY else "sdpa"
    passes = (rest if outside else layer)(CASES[name], 1024, attention)
    for side, operators in zip(PASSES, passes, strict=True):
        print(name, side)
        for (operator, kind, kernels, size), times in operators.items():
            print(f"{times:5} {operator:45} {kind:12} {kernels} {size / 2 / 2048:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), help="names of cases")
    parser.add_argument("--operators", nargs="*", default=[], help="names of cases whose operators are listed instead")
    parser.add_argument("--outside", action="store_true", help="with --operators: those outside the layers")
    given = parser.parse_args()
    for name in given.operators:
        list_operators(name, outside=given.outside)
    if given.operators:
        return
    print("# Written by tests/oracles/trace_kernels.py, which says what the numbers are. See `columns`.")
    print(f'\ntorch = "{torch.__version__.split("+")[0]}"\ntransformers = "{transformers.__version__}"')
    print(f'peft = "{peft.__version__}"\nrank = {adapters.RANK}')
    print('source = "traced: torch FakeTensorMode on the transformers model classes, some wrapped by peft"')
    columns = [f"{side}_{quantity}" for side in PASSES for quantity in QUANTITIES]
    print(f"columns = {full.toml_value(['wide', 'attention', 'targets', *columns])}")
    outside = [f"{side}_{quantity}" for side in PASSES for quantity in (*KINDS, "values")]
    print(f"rest_columns = {full.toml_value(['wide', *outside])}")
    for name in given.only:
        fields = {key: value for key, value in CASES[name].items() if value is not None}
        nulls = [key for key, value in CASES[name].items() if value is None]
        print(f'\n[[case]]\nname = "{name}"\nnulls = {full.toml_value(nulls)}')
        print(f"config = {{ {', '.join(f'{key} = {full.toml_value(value)}' for key, value in fields.items())} }}")
        print("traces = [")
        for settings in runs(name):
            print(f"  {full.toml_value(traced_row(name, settings))},", flush=True)
        print("]")
        if name in REST:
            rows = [rest_row(name, wide=wide) for wide in (False, True)]
            print(f"rest = {full.toml_value(rows)}")


if __name__ == "__main__":
    main()
