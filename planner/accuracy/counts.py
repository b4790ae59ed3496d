"""How many parameters a run trains and how many bytes its frozen ones take.

In: a `Run`. Out: `Counts` of one tensor-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.accuracy.run import Run
from planner.accuracy.tuning import Tuning
from planner.memory.sizes import RankSizes, rank_sizes
from planner.records.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Elements and bytes of the fullest rank."""

    sizes: RankSizes  # the whole model
    trained: int  # by the optimizer, but for the next
    trained_embeddings: int  # embedding and head beside adapters, stored as the model is
    largest_trained: int
    head_trained: int
    frozen_bytes: int
    dequantized_bytes: int  # one matrix of a 4-bit model, unpacked for its product


def counts_of(run: Run) -> Counts:
    """Full fine-tuning trains everything; adapters add their own beside frozen weights."""
    sizes = rank_sizes(run.shape, run.candidate.degrees.tp)
    tuning = run.tuning
    if tuning.full:
        return Counts(
            sizes=sizes,
            trained=sizes.total,
            trained_embeddings=0,
            largest_trained=sizes.largest_tensor,
            head_trained=sizes.head,
            frozen_bytes=0,
            dequantized_bytes=0,
        )
    outside = 0 if not tuning.embeddings else sizes.embedding + (0 if sizes.tied else sizes.head)
    return Counts(
        sizes=sizes,
        trained=adapter_elements(run.shape, tuning),
        trained_embeddings=outside,
        largest_trained=max(tuning.rank * run.shape.ffn_hidden, sizes.embedding if tuning.embeddings else 0),
        head_trained=sizes.head if tuning.embeddings else 0,
        frozen_bytes=frozen_weight_bytes(sizes, run.shape, tuning),
        dequantized_bytes=2 * sizes.layer_largest_tensor if tuning.quantized else 0,
    )


def adapter_elements(shape: ModelShape, tuning: Tuning) -> int:
    """Low-rank matrices beside the targets of all layers.

    Formula: L * sum of r * (inputs + outputs).
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    Leaves out: prefixes, and the vectors of methods that scale activations.
    """
    hidden, ffn = shape.hidden, shape.ffn_hidden
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    ends = {
        "q": hidden + query,
        "k": hidden + key,
        "v": hidden + key,
        "o": query + hidden,
        "up": (hidden + ffn) * (2 if shape.gated_mlp else 1),
        "down": ffn + hidden,
    }
    return shape.layers * tuning.rank * sum(ends[site] for site in tuning.sites)


def frozen_weight_bytes(sizes: RankSizes, shape: ModelShape, tuning: Tuning) -> int:
    """Weights that are not trained.

    Formula: bytes of a layer's weight * those in layers + bytes of the head * V h + bytes of the rest * (V h + norms).
    Source: Dettmers et al. 2023, arXiv:2305.14314; peft `prepare_model_for_kbit_training` casts what is not 4-bit to
        fp32; LitGPT's BitsandbytesPrecision converts the head too.
    Leaves out: that the head of a 4-bit model is unpacked for the loss.
    """
    in_layers = shape.layers * sizes.layer
    head = 0 if sizes.tied else sizes.head
    rest = sizes.total - in_layers - head
    return int(tuning.frozen_bytes * in_layers + tuning.frozen_head_bytes * head + tuning.frozen_rest_bytes * rest)
