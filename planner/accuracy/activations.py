"""Activations and loss of layers that are not transformers' own.

In: a `Run`. Out: terms in the names that a plan's terms have. Megatron's layers have a module of their own, because
tensor parallelism divides them.
"""

from __future__ import annotations

from dataclasses import replace

from planner.accuracy.layers import (
    KERNELS,
    LITGPT,
    TORCHTUNE,
    TRANSFORMERS,
    LayerCode,
    backward_bytes_per_token,
    layer_kept_bytes_per_token,
    mlp_bytes_per_token,
    outliving_bytes_per_token,
)
from planner.accuracy.moments import ACTIVATIONS, HEAD, LAYER_BACKWARD, LOSS, LOSS_BACKWARD
from planner.accuracy.run import Run
from planner.accuracy.words import Layers
from planner.memory.inputs import term
from planner.records.candidate import Checkpointing
from planner.records.estimate import Term

SOURCE = "the framework's own layers, traced (planner/accuracy/layers.py)"
LITGPT_CHUNK = 128
"""Tokens of each sequence whose logits LitGPT computes at once (litgpt/finetune/lora.py `lm_head_chunk_size`)."""
CODES = {
    Layers.LITGPT: LITGPT,
    Layers.TORCHTUNE: TORCHTUNE,
    Layers.FOUNDRY: KERNELS,
    Layers.TRANSFORMERS: TRANSFORMERS,
}


def code_of(layers: Layers, *, fused_kernels: bool) -> LayerCode:
    """The code that ran: fused kernels replace norms and activations, not how key and value are laid out."""
    own = CODES[layers]
    return replace(KERNELS, expands=own.expands) if fused_kernels else own


def layer_terms(run: Run) -> list[Term]:
    """What the layers keep and what their backward adds.

    A tiled MLP (DeepSpeed's `TiledMLP`, arXiv:2506.13996) holds one tile of the sequence at a time, next to nothing.
    """
    shape, code = run.shape, code_of(run.layers, fused_kernels=run.fused_kernels)
    kept = layer_kept_bytes_per_token(shape, code, run.tuning, run.workload.attention, run.workload.seq_len)
    if run.tiled_mlp:
        kept -= mlp_bytes_per_token(shape, code, run.tuning)
    stream = 2 * shape.hidden
    extra = stream if run.tiled_mlp else backward_bytes_per_token(shape, code)
    terms = []
    if run.candidate.checkpointing is Checkpointing.FULL:
        held = run.tokens * stream * shape.layers
        terms.append(term("activations/checkpoints", ACTIVATIONS, held, f"{shape.layers} layers x {stream}", SOURCE))
        terms.append(term("activations/layer", LAYER_BACKWARD, run.tokens * kept, f"1 layer x {kept}", SOURCE))
    else:
        held = run.tokens * kept * shape.layers
        terms.append(term("activations/kept", ACTIVATIONS, held, f"{shape.layers} layers x {kept}", SOURCE))
    outliving = run.tokens // 2 * outliving_bytes_per_token(shape, run.tuning) * shape.layers
    formula = "the step before, taken as half as long: (6h + 2I) a layer"
    terms.append(term("activations/step_before", ACTIVATIONS, outliving, formula, SOURCE))
    terms.append(term("activations/final_norm", HEAD, run.tokens * 3 * stream, "6h", SOURCE))
    terms.append(term("activations/backward_temporaries", LAYER_BACKWARD, run.tokens * extra, str(extra), SOURCE))
    return terms


def loss_terms(run: Run) -> list[Term]:
    """Logits and loss of LitGPT, torchtune and llm-foundry."""
    forward, backward = loss_bytes_per_token(run)
    unpacked = 2 * run.shape.vocab * run.shape.hidden if run.tuning.frozen_head_bytes < 2 else 0
    chunked = run.layers is Layers.TORCHTUNE and run.tuning.full and run.point.fused_ce != "none"
    head = 2 * run.shape.vocab * run.shape.hidden if chunked else 0
    in_pieces = run.layers is Layers.LITGPT and not run.tuning.full
    in_chunk = run.candidate.micro_batch * min(LITGPT_CHUNK, run.workload.seq_len) if in_pieces else 0
    chunk = max(0, 8 * run.shape.vocab * in_chunk - unpacked)  # the losses of all chunks go first, then their products
    return [
        term("logits/forward", LOSS, run.tokens * forward, f"{run.tokens} tokens x {forward}", SOURCE),
        term("logits/backward", LOSS_BACKWARD, run.tokens * backward, f"{run.tokens} tokens x {backward}", SOURCE),
        term("logits/chunk", LOSS_BACKWARD, chunk, f"{in_chunk} tokens x 8V, above an unpacked head", SOURCE),
        term("gathered/head", HEAD, unpacked, "2 * V * h: a 4-bit head, unpacked for its product", SOURCE),
        term("gradients/chunked_head", LOSS_BACKWARD, head, "2 * V * h: summed up chunk by chunk", SOURCE),
    ]


def loss_bytes_per_token(run: Run) -> tuple[int, int]:
    """At the end of forward, and at the start of backward.

    Formula: LitGPT 8V with chunks of 128 tokens: Lightning Fabric returns fp32 logits 4V, and each chunk keeps its
        log-softmax 4V; backward adds 8V for the tokens of one chunk. 12V for full fine-tuning, where the logits are one
        tensor and its shifted copy is another.
        torchtune in chunks 6V: 16-bit logits 2V and the log-softmax 4V, which a compiled loss recomputes; in one piece
        10V and 12V. llm-foundry 2V: flash-attention's kernel overwrites the 16-bit logits with their gradient.
    Source: LitGPT utils.py `chunked_cross_entropy`, lightning/fabric/plugins/precision/half.py `convert_output`;
        torchtune modules/loss/ce_chunked_output_loss.py, compiled by torchtune/training/_compile.py `compile_loss`;
        flash_attn/losses/cross_entropy.py with `inplace_backward`, llm-foundry's default `loss_fn`.
    Leaves out: torchtune's logits and gradients of one chunk.
    """
    vocab = run.shape.vocab
    if run.layers is Layers.LITGPT:
        return (12 * vocab, 12 * vocab) if run.tuning.full else (8 * vocab, 8 * vocab)
    if run.layers is Layers.FOUNDRY:
        return 2 * vocab, 2 * vocab
    if run.point.fused_ce == "none":
        return 10 * vocab, 12 * vocab
    return (2 * vocab, 2 * vocab) if run.fused_kernels else (6 * vocab, 6 * vocab)
