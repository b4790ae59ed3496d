"""What a frozen base model with low-rank adapters keeps for backward, as changes to what full training keeps.

In: model shape, adapter, one kind of layer. Out: that layer under adapters. Question: which saved tensors go when a
weight needs no gradient, and which do the adapters add?
A linear module whose weight is frozen does not save its input, and neither does the multiplication by a norm's weight;
an adapter saves the input of its module and its own narrow output. Symbols as in `activations_layer`; r the rank.
Tensor parallelism is left out: a search rule refuses it, because AutoTP does not train peft's modules.
"""

from __future__ import annotations

from dataclasses import replace

from planner.geometry.adapters import target_tensors
from planner.memory.activations_families import Family, NormCode, NormPlace, Projections, family_of
from planner.memory.activations_layer import (
    KEPT_BY_ACTIVATION,
    LayerBytes,
    mlp_kept_bytes_per_token,
    norm_bytes,
    norm_copy_bytes,
)
from planner.records.model import Adapter, ModelShape, Position
from planner.records.request import Attention

SOURCE = (
    "peft 0.21 tuners/lora/layer.py on transformers 5.24 modeling code, traced: tests/golden/adapter_activations.toml"
)
QUERY_KEY_VALUE = frozenset(f"layer/attention/{part}" for part in ("q", "k", "v", "qkv"))
MLP_INPUTS = frozenset(f"layer/mlp/{part}" for part in ("gate", "up", "gate_up"))
SHARED_INPUTS = frozenset(f"layer/mlp/shared/{part}" for part in ("gate", "up", "router"))
DOWN, SHARED_DOWN = "layer/mlp/down", "layer/mlp/shared/down"


def adapted_layer(
    shape: ModelShape, layer: LayerBytes, adapter: Adapter, *, width: int, attention: Attention, experts: bool
) -> LayerBytes:
    """The layer with frozen weights and adapters beside its targets.

    Formula: kept - inputs of frozen modules - normed values of frozen norms + wr for each target.
    Source: peft 0.21, tuners/lora/layer.py `Linear.forward`; traced, tests/golden/adapter_activations.toml.
    Leaves out: an fp32 copy of a target's input, which peft makes where adapters stay fp32 (outside DeepSpeed).
    """
    family, targets = family_of(shape), target_tensors(shape, adapter.targets)
    entering, leaving = unsaved_attention_bytes_per_token(shape, family, targets, width, attention)
    if experts:
        mlp, peak = (
            unsaved_experts_bytes_per_token(shape, targets, width),
            experts_backward_bytes_per_token(shape, width),
        )
        again = experts_recompute_bytes_per_token(shape, targets, width)
    else:
        mlp, peak = (
            unsaved_mlp_bytes_per_token(shape, targets, width),
            mlp_backward_bytes_per_token(shape, targets, width),
        )
        again = fused_recompute_bytes_per_token(shape, targets, width)
    normed, norms = normed_bytes(family, width), hidden_norms(shape, family)
    last = norm_bytes(shape, family, width).last
    heads = (shape.heads + shape.kv_heads) * shape.head_dim if shape.qk_norm else 0
    narrow = adapter_output_bytes_per_token(targets, adapter.rank, width, experts=experts)
    return replace(
        layer,
        kept=layer.kept - entering - leaving - mlp - normed * (norms * shape.hidden + heads) + narrow,
        shared=layer.shared - (entering if family.place is NormPlace.AFTER else 0),
        block_peak=max(
            peak - (last - normed * shape.hidden if last else 0),
            norm_backward_bytes_per_token(family, shape.hidden),
        ),
        block_cast=0,
        recompute_peak=again,
        scores_freed=layer.scores_freed - mlp - leaving - normed * (norms - 1) * shape.hidden,
        scores_not_yet=layer.scores_not_yet - mlp,
    )


def adapter_output_bytes_per_token(targets: frozenset[str], rank: int, width: int, *, experts: bool) -> int:
    """The narrow tensor between the two matrices of every adapter in a layer.

    Formula: wr for each target of the layer.
    Source: peft 0.21, tuners/lora/layer.py `Linear.forward`; traced.
    Leaves out: targets outside the layers (OPT-350M's projections).
    """
    in_layer = (name for name in targets if name.startswith("layer/"))
    here = (name for name in in_layer if "/mlp/" not in name or name.startswith("layer/mlp/shared/") is experts)
    return width * rank * sum(1 for _ in here)


def unsaved_attention_bytes_per_token(
    shape: ModelShape, family: Family, targets: frozenset[str], width: int, attention: Attention
) -> tuple[int, int]:
    """Inputs of the attention projections that no adapter reads: of query, key and value, and of the output.

    Formula: wh unless q, k or v is a target (in a parallel block of one norm: or gate or up); wAd, where the kernel
        does not keep its output itself, unless o is one.
    Source: transformers 5.24 modeling files; traced.
    Leaves out: nothing.
    """
    readers = QUERY_KEY_VALUE | (MLP_INPUTS if _one_input(shape) else frozenset())
    copied = family.output_copied or (family.projections is Projections.MATH and attention is Attention.SDPA)
    leaving = width * shape.heads * shape.head_dim if copied or attention is Attention.EAGER else 0
    return 0 if targets & readers else width * shape.hidden, 0 if "layer/attention/o" in targets else leaving


def _one_input(shape: ModelShape) -> bool:
    """Whether attention and MLP read the same tensor."""
    return shape.parallel_block and shape.norms_per_layer == 1


def unsaved_mlp_bytes_per_token(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    """Inputs of a dense MLP's matrices that no adapter reads.

    Formula: wh unless gate or up is a target; wI of the last input unless down is one, or the activation keeps its own
        output (relu).
    Source: transformers 5.24 MLP classes; traced.
    Leaves out: nothing.
    """
    entering = 0 if _one_input(shape) or targets & MLP_INPUTS else width * shape.hidden
    return entering + (0 if DOWN in targets or _output_is_kept(shape) else width * shape.ffn_hidden)


def _output_is_kept(shape: ModelShape) -> bool:
    """Whether the activation function itself keeps what the last matrix reads."""
    return not shape.gated_mlp and KEPT_BY_ACTIVATION.get(shape.activation) == 0


def unsaved_experts_bytes_per_token(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    """Inputs of frozen experts and their router, and of a shared expert's matrices that no adapter reads.

    Formula: wh unless a shared matrix is a target; k(wh + wI_e) of the slots; wI_s unless the shared down is a target.
    Source: transformers 5.24, integrations/moe.py `grouped_mm_experts_forward`; traced.
    Leaves out: nothing.
    """
    slots = shape.experts_per_token * width * (shape.hidden + shape.expert_ffn_hidden)
    shared = 0 if SHARED_DOWN in targets else width * shape.shared_ffn_hidden
    return _experts_input_bytes(shape, targets, width) + slots + shared


def _experts_input_bytes(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    return 0 if targets & SHARED_INPUTS else width * shape.hidden


def normed_bytes(family: Family, width: int) -> int:
    """Bytes of one normed value, which only the gradient of a norm's weight needs.

    Formula: w (RMS), 4 (RMS in fp32, LayerNorm in fp32 steps); 0 for torch's own LayerNorm, which keeps its input.
    Source: transformers 5.24, the norm classes; traced.
    Leaves out: nothing.
    """
    return {NormCode.RMS: width, NormCode.RMS_FP32: 4, NormCode.LAYER_FP32: 4}.get(family.norm, 0)


def hidden_norms(shape: ModelShape, family: Family) -> int:
    """How many hidden-wide norms a layer has."""
    return {NormPlace.BEFORE: shape.norms_per_layer, NormPlace.AROUND: 4, NormPlace.AFTER: 2}[family.place]


def mlp_backward_bytes_per_token(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    """What a frozen dense MLP's backward needs beyond the kept tensors.

    Formula: three I-wide gradients: of the product and of both factors, or where down is a target its two paths and
        their sum, less the product kept for the adapter; two where one kernel is all there is between the matrices.
    Source: traced op by op (torch 2.13, peft 0.21).
    Leaves out: gradients of the adapters.
    """
    inner = width * shape.ffn_hidden
    if DOWN in targets:
        return 3 * inner if _output_is_kept(shape) else 2 * inner
    one_kernel = not shape.gated_mlp and KEPT_BY_ACTIVATION.get(shape.activation, 1) <= 1
    return (2 if one_kernel else 3) * inner


def fused_recompute_bytes_per_token(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    """A recomputed layer at the adapter of a fused gate and up projection.

    Formula: three 2I-wide tensors (the module's output, the adapter's, and that scaled), less the 4wI of the MLP that
        are kept later, + 2wh of the residual stream; 0 without such a target.
    Source: peft 0.21, tuners/lora/layer.py `Linear.forward`; traced op by op (phi3).
    Leaves out: separate projections, which stay below their backward.
    """
    return 2 * width * (shape.ffn_hidden + shape.hidden) if "layer/mlp/gate_up" in targets else 0


def experts_backward_bytes_per_token(shape: ModelShape, width: int) -> int:
    """What frozen experts' backward needs beyond the kept tensors.

    Formula: max(3k * wh (4 in place of w with fp32 routing) + wh for a shared expert, kw(3 I_e - h)).
    Source: traced op by op (torch 2.13, transformers 5.24): three copies of the slots' gradients, or those of the gate.
    Leaves out: nothing.
    """
    chosen, family = shape.experts_per_token, family_of(shape)
    shared = width * shape.hidden if shape.shared_ffn_hidden else 0
    outputs = 3 * chosen * (4 if family.fp32_routing else width) * shape.hidden + shared
    return max(outputs, chosen * width * (3 * shape.expert_ffn_hidden - shape.hidden))


def experts_recompute_bytes_per_token(shape: ModelShape, targets: frozenset[str], width: int) -> int:
    """A recomputed layer where the experts' outputs are weighted.

    Formula: 3k * wh for the slots' inputs, outputs and weighted outputs + wh of the residual stream + wh of the
        experts' input where no adapter keeps it.
    Source: traced op by op (qwen2_moe, qwen3_moe).
    Leaves out: fp32 routing, which stays below its backward.
    """
    stream = width * shape.hidden
    return 3 * shape.experts_per_token * stream + stream + _experts_input_bytes(shape, targets, width)


def norm_backward_bytes_per_token(family: Family, hidden: int) -> int:
    """What a frozen RMS norm behind the MLP needs in backward beyond the kept tensors.

    Formula: 20h: five fp32 tensors.
    Source: traced op by op (torch 2.13): gemma2, gemma3_text, olmo2, glm4.
    Leaves out: nothing.
    """
    return 20 * hidden if family.place is not NormPlace.BEFORE else 0


def unsaved_head_bytes_per_token(shape: ModelShape, width: int) -> int:
    """What a frozen final norm, head and embedding do not keep.

    Formula: wh of the head's input + the final norm's normed values + wh + 8 of an embedding's norm, h of its dropout,
        2w for each of the embedding's own width.
    Source: transformers 5.24 modeling files; traced.
    Leaves out: nothing.
    """
    hidden = shape.hidden
    embedding = norm_copy_bytes(NormCode.LAYER, hidden, width) if shape.trait("embedding_norm") else 0
    embedding += 2 * width * int(shape.trait("embedding_width", 0)) + (
        hidden if shape.trait("embedding_dropout") else 0
    )
    normed = normed_bytes(family_of(shape), width) * hidden if shape.final_norm else 0
    return width * hidden + normed + embedding


def unsaved_first_layer_bytes_per_token(shape: ModelShape, adapter: Adapter, width: int) -> int:
    """What the first layer does not keep because its input, the embedding, needs no gradient.

    Formula: what one frozen norm keeps (0 where the layer starts with a projection); of a key norm without an adapter
        behind it likewise; the MLP of a parallel block without targets.
    Source: torch autograd; peft 0.21 makes the embedding's output require gradients for reentrant checkpointing only;
        traced.
    Leaves out: scores of eager attention.
    """
    family, targets = family_of(shape), target_tensors(shape, adapter.targets)
    normed = normed_bytes(family, width)
    size = 0
    if family.place is not NormPlace.AFTER:
        size += norm_copy_bytes(family.norm, shape.hidden, width) - normed * shape.hidden
    if shape.qk_norm and normed and not targets & {"layer/attention/k", "layer/attention/qkv"}:
        copies = norm_copy_bytes(family.norm, 1, width) - normed - 4
        size += copies * shape.kv_heads * shape.head_dim
    if shape.parallel_block and not targets & (MLP_INPUTS | {DOWN}):
        size += mlp_kept_bytes_per_token(shape, 1, width) - (0 if _output_is_kept(shape) else width * shape.ffn_hidden)
    return size


def embedding_copy_bytes_per_token(shape: ModelShape, width: int) -> int:
    """The token embedding beside its sum with positions or its norm, under checkpointing.

    Formula: wh where positions are learned or the embedding is normed, else 0: it is the first layer's input itself.
    Source: traced (gpt2, opt, bloom).
    Leaves out: nothing.
    """
    return width * shape.hidden if shape.position is Position.LEARNED or shape.trait("embedding_norm") else 0
