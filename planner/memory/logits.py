"""Memory of the head and the loss on one GPU: logits are often the largest tensors of a step.

In: model shape, micro-batch, sequence length, tensor-parallel degree, precision, loss. Out: terms. Question: how many
bytes do logits and their gradients take at the end of forward and at the start of backward?

The loop is the Hugging Face Trainer's: `Trainer.compute_loss` (transformers 5.24) returns the loss alone, so the
model's output and its logits are gone before `training_step` calls backward: 12V bytes per token in bf16, not 14V.
"""

from __future__ import annotations

from functools import lru_cache

from planner.records.estimate import Device, Moment, Term
from planner.records.model import ModelShape, Precision
from planner.records.request import Loss
from planner.units import ceil_div, next_power_of_two

STANDARD_SOURCE = "transformers 5.24 loss/loss_utils.py ForCausalLMLoss and trainer.py compute_loss; traced"
DIVIDED_SOURCE = "DeepSpeed 0.19.8 sequence/cross_entropy.py `VocabParallelCausalLMLoss`; traced"
FUSED_SOURCE = "Liger Kernel src/liger_kernel/ops/fused_linear_cross_entropy.py; arXiv:2410.10989 section 3.2"


def logits_terms(
    shape: ModelShape,
    *,
    micro_batch: int,
    seq_len: int,
    tp: int,
    precision: Precision,
    loss: Loss,
    frozen: bool = False,
) -> tuple[Term, ...]:
    """Head and loss. AutoTP gathers the logits to full width on every rank, but for a tied head that it divides with
    the embedding: there they stay divided, and DeepSpeed's own loss reads them."""
    rows = 0 if frozen else shape.vocab
    divided = tp > 1 and loss is Loss.STANDARD and bool(shape.trait("vocab_parallel_head"))
    if divided:
        return _divided_terms(shape, micro_batch, seq_len, tp, precision.bytes)
    return _terms(shape, micro_batch * seq_len, precision.bytes, loss, rows)


@lru_cache(maxsize=4096)
def _divided_terms(shape: ModelShape, micro_batch: int, seq_len: int, tp: int, width: int) -> tuple[Term, ...]:
    """The terms of a head that tensor parallelism divides by its vocabulary."""
    tokens, vocab = micro_batch * seq_len, ceil_div(shape.vocab, tp)
    capped = bool(shape.trait("final_logit_softcapping"))
    forward = divided_logits_forward_bytes_per_token(vocab, width, capped=capped, single=micro_batch == 1)
    backward = divided_logits_backward_bytes_per_token(vocab, width, capped=capped)
    return (
        _term(
            "logits/forward", (Moment.FORWARD_END,), tokens * forward, f"{tokens} tokens x {forward}", DIVIDED_SOURCE
        ),
        _term(
            "logits/backward",
            (Moment.BACKWARD_HEAD,),
            tokens * backward,
            f"{tokens} tokens x {backward}",
            DIVIDED_SOURCE,
        ),
        _gradient_term(tokens, vocab, shape.hidden, width),
    )


def _gradient_term(tokens: int, vocab: int, hidden: int, width: int) -> Term:
    return _term(
        "logits/gradient",
        (Moment.BACKWARD_HEAD_WEIGHT,),
        tokens * width * (vocab + hidden),
        f"{tokens} tokens x {width} x ({vocab} + {hidden})",
        "torch 2.13 derivatives.yaml, mm: gradients of both factors",
    )


@lru_cache(maxsize=4096)
def _terms(shape: ModelShape, tokens: int, width: int, loss: Loss, trained_rows: int) -> tuple[Term, ...]:
    """Kept because the stages and offloads of a search ask for the same terms again."""
    vocab, hidden = shape.vocab, shape.hidden
    if loss is Loss.FUSED:
        chunk = fused_chunk_tokens(tokens, vocab, hidden)
        return (
            _term(
                "logits/fused_chunk",
                (Moment.FORWARD_END,),
                fused_chunk_bytes(tokens, vocab, hidden, width),
                f"chunk {chunk} x {vocab} x {width}",
                FUSED_SOURCE,
            ),
            _term(
                "logits/fused_gradients",
                (Moment.FORWARD_END, Moment.BACKWARD_HEAD),
                fused_gradient_bytes(tokens, trained_rows, hidden, width),
                f"{width} x {hidden} x ({tokens} tokens + {trained_rows} trained rows of the head)",
                FUSED_SOURCE,
            ),
        )
    capped = bool(shape.trait("final_logit_softcapping"))
    forward = logits_forward_bytes_per_token(vocab, width, capped=capped)
    backward = logits_backward_bytes_per_token(vocab, width, capped=capped)
    return (
        _term(
            "logits/forward", (Moment.FORWARD_END,), tokens * forward, f"{tokens} tokens x {forward}", STANDARD_SOURCE
        ),
        _term(
            "logits/backward",
            (Moment.BACKWARD_HEAD,),
            tokens * backward,
            f"{tokens} tokens x {backward}",
            STANDARD_SOURCE,
        ),
        _gradient_term(tokens, vocab, hidden, width),
    )


def _term(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str, source: str) -> Term:
    return Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=source)


def logits_forward_bytes_per_token(vocab: int, width: int, *, capped: bool) -> int:
    """Peak of the forward inside the loss.

    Formula: logits wV + fp32 copy 4V + log-softmax 4V = 10V in bf16, 8V in fp32 (no copy); a soft cap keeps wV more.
    Source: transformers 5.24 loss/loss_utils.py `ForCausalLMLoss` (labels are shifted, logits are not copied); traced.
    Leaves out: labels.
    """
    return vocab * (width + 4 + (4 if width < 4 else 0) + (width if capped else 0))


def logits_backward_bytes_per_token(vocab: int, width: int, *, capped: bool) -> int:
    """Peak at the start of backward.

    Formula: saved log-softmax 4V + gradient of the loss 4V + gradient of the logits 4V = 12V; a soft cap keeps wV more.
    Source: torch 2.13 `nll_loss_backward` and `_log_softmax_backward_data`; traced.
    Leaves out: `outputs.logits` (wV more) where a loop keeps the model's output during backward; the Trainer does not.
    """
    return vocab * (12 + (width if capped else 0))


def divided_logits_forward_bytes_per_token(vocab: int, width: int, *, capped: bool, single: bool) -> int:
    """Peak of the forward inside DeepSpeed's loss over logits that stay divided; `vocab` is the rank's own part.

    Formula: logits wV + their shifted copy wV (a view of a single sample) + fp32 copy 4V (none where w = 4) +
        difference from the maximum 4V + exponential 4V: 16V in bf16 and in fp32; a soft cap keeps wV more.
    Source: DeepSpeed 0.19.8, deepspeed/sequence/cross_entropy.py `VocabParallelCausalLMLoss.__call__`,
        `_VocabParallelCrossEntropy.forward`; traced.
    Leaves out: the one position a sample that has no label.
    """
    copies = (0 if single else width) + (4 if width < 4 else 0)
    return vocab * (width + copies + 8 + (width if capped else 0))


def divided_logits_backward_bytes_per_token(vocab: int, width: int, *, capped: bool) -> int:
    """Peak at the start of backward with DeepSpeed's loss; `vocab` is the rank's own part.

    Formula: kept exponential 4V + gradient 4V + its cast wV (none where w = 4); a soft cap keeps wV more.
    Source: DeepSpeed 0.19.8, deepspeed/sequence/cross_entropy.py `_VocabParallelCrossEntropy.backward`; traced.
    Leaves out: what `divided_logits_forward_bytes_per_token` leaves out.
    """
    return vocab * (8 + (width if width < 4 else 0) + (width if capped else 0))


def fused_chunk_tokens(tokens: int, vocab: int, hidden: int) -> int:
    """Tokens whose logits the fused loss makes at a time.

    Formula: min(T, p2(ceil(T / ceil(V / h)))): about as many logits as hidden values.
    Source: Liger Kernel, fused_linear_cross_entropy.py `fused_linear_cross_entropy_forward` (inc_factor, chunk_size).
    Leaves out: nothing.
    """
    return min(tokens, next_power_of_two(ceil_div(tokens, ceil_div(vocab, hidden))))


def fused_chunk_bytes(tokens: int, vocab: int, hidden: int, width: int) -> int:
    """Logits of one chunk, which its gradient overwrites.

    Formula: chunk * V * w.
    Source: Liger Kernel, fused_linear_cross_entropy.py: `logits_chunk`, gradient in place.
    Leaves out: the fp32 product of the head's size that releases before 0.7 and cards before Ampere make per chunk.
    """
    return fused_chunk_tokens(tokens, vocab, hidden) * vocab * width


def fused_gradient_bytes(tokens: int, trained_rows: int, hidden: int, width: int) -> int:
    """Gradients that the fused loss computes in forward and keeps until backward.

    Formula: w * h * (T + V): of the hidden states and of the whole head; w * h * T where the head is frozen.
    Source: Liger Kernel, fused_linear_cross_entropy.py: `grad_input`, `grad_weight`, saved for backward.
    Leaves out: a head that tensor parallelism divides: Liger reads the rank's own rows.
    """
    return width * hidden * (tokens + trained_rows)
