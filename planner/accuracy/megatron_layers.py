"""What Megatron's layers keep for backward, and its loss.

In: a `Run`. Out: terms. Megatron divides the vocabulary and the logits by t, and under sequence parallelism the norms,
dropouts and the residual stream too. Aleph Alpha's scaling is built like it, but for three things its code shows: a
SwiGLU in separate operations, norms whose output is gathered and kept whole, and logits gathered on every rank.
"""

from __future__ import annotations

from planner.accuracy.moments import ACTIVATIONS, HEAD, LAYER_BACKWARD, LOSS, LOSS_BACKWARD
from planner.accuracy.run import Run
from planner.accuracy.words import Layers
from planner.memory.inputs import term
from planner.records.candidate import Checkpointing
from planner.records.estimate import Term
from planner.records.request import Attention, Loss
from planner.units import ceil_div

KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198, section 4"
SCALING = "https://github.com/Aleph-Alpha/scaling: src/scaling/core/nn/{mlp,norm/rms_norm}.py"


def layer_kept_bytes_per_token(run: Run) -> int:
    """One layer.

    Formula: GPT 34h + 5As of which 10h are not divided by t without sequence parallelism, the scores only without a
        flash kernel; gated: inputs and outputs of two norms 8h (whole or divided), query, key, value and output
        (4A + 4K)d and 6I over t. In scaling the norms keep 4h more for their weight, their outputs 4h are always whole,
        and the MLP keeps 8I.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4; megatron/core/fusions/fused_bias_swiglu.py keeps the
        input of the activation and the product alone.
    Leaves out: statistics of norms and softmax; that dropout masks do not double in an fp32 run, as the rest does.
    """
    shape, tp = run.shape, run.candidate.degrees.tp
    divided = tp if run.sequence_parallel else 1
    hidden, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    scores = 5 * shape.heads * run.workload.seq_len if run.workload.attention is Attention.EAGER else 0
    whole = 0
    if run.layers is Layers.SCALING:
        outside, whole = 8 * hidden, 4 * hidden
        inside = 4 * query + 4 * key + 4 * shape.heads + 8 * shape.ffn_hidden
    elif shape.gated_mlp:
        outside = 8 * hidden
        inside = 4 * query + 4 * key + 4 * shape.heads + 6 * shape.ffn_hidden
    else:
        outside = 10 * hidden
        inside = 2 * (query + 2 * key) + 2 * query + 4 * shape.ffn_hidden
    kept = whole + ceil_div(outside, divided) + ceil_div(inside + scores, tp)
    return kept * run.workload.precision.bytes // 2


def backward_bytes_per_token(run: Run) -> int:
    """What the backward of a layer adds to what it kept, but for the gradient of the residual stream.

    Formula: the larger of 4I / t for the MLP, and for eager attention the gradients of the dropped and of the plain
        softmax 4As / t less the MLP's tensors that are gone by then, 4I / t and 4h.
    Source: autograd order: the MLP is differentiated first; torch `native_dropout_backward`, `_softmax_backward_data`.
    Leaves out: kernels that differentiate the softmax in place.
    """
    shape, tp = run.shape, run.candidate.degrees.tp
    mlp = ceil_div(4 * shape.ffn_hidden, tp)
    if run.workload.attention is not Attention.EAGER:
        return mlp
    scores = ceil_div(4 * shape.heads * run.workload.seq_len, tp)
    return max(mlp, scores - mlp - 4 * shape.hidden)


def megatron_activation_terms(run: Run) -> list[Term]:
    """Activations and logits of a rank."""
    shape, tp, tokens = run.shape, run.candidate.degrees.tp, run.tokens
    source = SCALING if run.layers is Layers.SCALING else KORTHIKANTI
    layer = layer_kept_bytes_per_token(run)
    stream = ceil_div(2 * shape.hidden, tp if run.sequence_parallel else 1)
    inner = stream + backward_bytes_per_token(run)
    terms = []
    if run.candidate.checkpointing is Checkpointing.FULL:
        terms.append(term("activations/checkpoints", ACTIVATIONS, tokens * stream * shape.layers, "2h a layer", source))
        terms.append(term("activations/layer", LAYER_BACKWARD, tokens * layer, "one layer", source))
    else:
        terms.append(term("activations/kept", ACTIVATIONS, tokens * layer * shape.layers, "all layers", source))
    forward, backward = loss_bytes_per_token(run)
    terms += [
        term("activations/backward_temporaries", LAYER_BACKWARD, tokens * inner, str(inner), source),
        term("activations/final_norm", HEAD, tokens * 2 * stream, "4h", source),
        term("logits/forward", LOSS, tokens * forward, f"{forward} a token", source),
        term("logits/backward", LOSS_BACKWARD, tokens * backward, f"{backward} a token", source),
    ]
    return terms


def loss_bytes_per_token(run: Run) -> tuple[int, int]:
    """Cross-entropy at the end of forward and at the start of backward.

    Formula: V/t: 16-bit logits 2V, an fp32 copy 4V, shifted by its maximum 4V, which becomes the softmax in place and
        then the gradient; fused 4V. In scaling the whole V: 16-bit logits 2V kept by the engine, fp32 copy 4V and
        log-softmax 4V; then the log-softmax 4V and two gradients 8V.
    Source: megatron/core/tensor_parallel/cross_entropy.py: `vocab_parallel_logits.float()`, `exp` in place;
        scaling transformer/model/layers/lm_head.py (`parallel_output` False), losses/cross_entropy.py.
    Leaves out: the mask of target tokens.
    """
    if run.layers is Layers.SCALING:
        return 10 * run.shape.vocab, 14 * run.shape.vocab
    vocab = ceil_div(run.shape.vocab, run.candidate.degrees.tp)
    return (4 * vocab, 4 * vocab) if run.workload.loss is Loss.FUSED else (10 * vocab, 6 * vocab)
