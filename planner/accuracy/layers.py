"""What a layer keeps for backward where its code is not that of transformers.

In: model shape, the code's traits, what is trained. Out: bytes per token. Question: which tensors do LitGPT, torchtune,
llm-foundry, or transformers under fused kernels hold from forward to backward?
Every row was read off the framework's own layers with `torch.autograd.graph.saved_tensors_hooks`
(LitGPT 0.5.13, torchtune 0.6.1 eager and compiled; torch 2.13), counted as on a GPU: a dropout mask is one byte, and a
flash kernel returns its output in the layout that the next product reads.
Symbols: h hidden, I ffn width, A and K query and key/value heads of size d; 16-bit values.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.accuracy.tuning import Tuning
from planner.records.model import ModelShape
from planner.records.request import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCode:
    """How one framework's layer is written."""

    norm_input: int  # bytes a norm keeps of each input value; 4 where it computes on an fp32 copy
    norm_normed: int  # of each normed value, where the norm's weight is trained; 0 for a kernel
    gate_tensors: int  # I-wide tensors of a gated MLP before its product: gate and up, and the activation's output
    holds_projection: bool = False  # the value is a view of the fused projection, which therefore stays
    expands: bool = False  # key and value are repeated for every query head
    parallel: bool = False  # an ungated block's attention and MLP read one residual stream
    padded_updates: bool = False  # low-rank updates of some of q, k and v are scattered into one tensor
    recompute_tensors: int = 2  # I-wide gradients alive at once in the MLP's backward


LITGPT = LayerCode(
    norm_input=4, norm_normed=4, gate_tensors=3, holds_projection=True, parallel=True, padded_updates=True
)
TORCHTUNE = LayerCode(norm_input=4, norm_normed=4, gate_tensors=3, expands=True)
TRANSFORMERS = LayerCode(norm_input=4, norm_normed=2, gate_tensors=3)
KERNELS = LayerCode(norm_input=2, norm_normed=0, gate_tensors=2, recompute_tensors=1)
"""Fused norms and activations: Liger Kernel's (arXiv:2410.10989), torch.compile's, llm-foundry's."""


def layer_kept_bytes_per_token(
    shape: ModelShape, code: LayerCode, tuning: Tuning, attention: Attention, seq_len: int
) -> int:
    """One layer.

    Formula: norms + attention + MLP + what adapters add; the parts below. Scores under eager attention: 6As.
    Source: traced, see the module.
    Leaves out: statistics of norms, tensors as narrow as an adapter's rank.
    """
    scores = 6 * shape.heads * seq_len if attention is Attention.EAGER else 0
    return (
        norms_bytes_per_token(shape, code, tuning)
        + attention_bytes_per_token(shape, code, tuning)
        + mlp_bytes_per_token(shape, code, tuning)
        + scores
    )


def input_bytes_per_token(width: int, tuning: Tuning, *sites: str, held: bool = False) -> int:
    """The input of linear modules, kept where their weight, an adapter or a 4-bit product needs it.

    Formula: 2 * width if it is kept and not `held` by another operation; with dropout before the adapter 3 * width: the
        dropped copy and its mask, in place of the input.
    Source: torch `mm` saves its input only for a weight that needs a gradient; peft and LitGPT drop out before A;
        bitsandbytes before 0.43 `MatMul4Bit` keeps `(A, B)`.
    Leaves out: one copy for each of several adapters on one input.
    """
    adapted = bool(tuning.sites & set(sites))
    if adapted and tuning.dropout:
        return 3 * width + (2 * width if tuning.keeps_inputs and not held else 0)
    needed = tuning.full or adapted or tuning.keeps_inputs
    return 2 * width if needed and not held else 0


def norms_bytes_per_token(shape: ModelShape, code: LayerCode, tuning: Tuning) -> int:
    """Both norms of a layer with their outputs.

    Formula: gated (RMS): 2 * (n h + m h) and the inputs of q, k, v and of the MLP; n bytes of the norm's input, m of
        its normed values if its weight is trained. Ungated (LayerNorm): 2h for each norm, once in a parallel block.
    Source: LitGPT rmsnorm.py, torchtune modules/rms_norm.py; torch's LayerNorm keeps its input.
    Leaves out: nothing.
    """
    hidden = shape.hidden
    outputs = input_bytes_per_token(hidden, tuning, "q", "k", "v") + input_bytes_per_token(hidden, tuning, "up")
    if shape.gated_mlp and tuning.dropout and "up" in tuning.sites:
        outputs += 3 * hidden  # gate and up drop out a copy each
    if not shape.gated_mlp:
        return outputs + 2 * hidden * (1 if code.parallel else 2)
    normed = code.norm_normed if tuning.full or tuning.norms else 0
    return outputs + 2 * hidden * (code.norm_input + normed)


def attention_bytes_per_token(shape: ModelShape, code: LayerCode, tuning: Tuning) -> int:
    """Query, key, value, output and statistics, and what adapters on them add.

    Formula: 2Ad + 2Kd + 2Kd + 2Ad + 4A; key and value A-wide where they are repeated; the whole projection in place of
        the value where that is a view of it.
    Source: LitGPT model.py CausalSelfAttention, torchtune modules/attention.py.
    Leaves out: rotary tables.
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    repeated = query if code.expands else key
    value = 2 * (query + 2 * key) if code.holds_projection else 2 * repeated
    kept = 4 * query + 2 * repeated + value + 4 * shape.heads
    kept += input_bytes_per_token(query, tuning, "o", held=True)
    updated = {"q": query, "k": key, "v": key}
    some = tuning.sites & set(updated)
    if code.padded_updates and some and some != set(updated):
        kept += 2 * sum(updated[site] for site in some)
    return kept


def mlp_bytes_per_token(shape: ModelShape, code: LayerCode, tuning: Tuning) -> int:
    """The MLP.

    Formula: gated 2I for each of gate, up and, unfused, the activation's output; ungated 2I for the activation's input;
        and the input of the last product.
    Source: LitGPT model.py LLaMAMLP and GptNeoxMLP, torchtune modules/feed_forward.py.
    Leaves out: nothing.
    """
    inner = 2 * shape.ffn_hidden * (code.gate_tensors if shape.gated_mlp else 1)
    kept = inner + input_bytes_per_token(shape.ffn_hidden, tuning, "down")
    if tuning.norms:  # every linear output is kept for its scale
        wide = 2 if shape.gated_mlp else 1
        kept += 2 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 4 * shape.hidden + 2 * wide * shape.ffn_hidden
    return kept


def outliving_bytes_per_token(shape: ModelShape, tuning: Tuning) -> int:
    """Inputs of 4-bit products that outlive their backward, until the next loss replaces the one they belong to.

    Formula: 6h + 2I: the inputs of the projections, of attention's output, of the MLP and of its last product.
    Source: bitsandbytes before 0.43 `MatMul4Bit` keeps its input as an attribute of the node, which autograd frees with
        the graph and not, like saved tensors, with the node's own backward.
    Leaves out: nothing.
    """
    return 6 * shape.hidden + 2 * shape.ffn_hidden if tuning.keeps_inputs else 0


def backward_bytes_per_token(shape: ModelShape, code: LayerCode) -> int:
    """What a layer's backward adds to what it kept.

    Formula: 2h of the residual stream's gradient and the I-wide gradients of the MLP.
    Source: traced as transformers' layers are, tests/golden/activations.toml.
    Leaves out: weight gradients.
    """
    return 2 * shape.hidden + 2 * shape.ffn_hidden * (code.recompute_tensors if shape.gated_mlp else 1)
