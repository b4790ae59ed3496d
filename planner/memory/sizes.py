"""How many elements one rank holds: the counts every other memory module starts from.

In: a model shape and a tensor-parallel degree. Out: `RankSizes`, counted on the fullest tensor-parallel rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, repeat

from planner.geometry.adapters import adapter_tensors
from planner.geometry.params import (
    EXPERT_PREFIX,
    largest_tensor_numel,
    layer_numel,
    parameter_tensors,
    rank_numel,
    rank_parameter_count,
)
from planner.memory.optimizers import muon_takes, muon_workspace_bytes
from planner.memory.tensor_order import TensorOrder, tensor_order
from planner.records.model import Adapter, ModelShape, ParameterTensor, Split
from planner.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSizes:
    """Element counts of one tensor-parallel rank (the whole model when tp is 1)."""

    total: int
    divided: int  # elements of tensors that tensor parallelism splits
    largest_tensor: int
    layer: int  # all tensors of one layer, the fullest
    layer_divided: int  # the tensors of one layer that tensor parallelism splits
    layer_largest_tensor: int
    embedding: int
    head: int  # the output matrix; the embedding itself where they are tied
    tied: bool
    tensors: tuple[tuple[int, int], ...]  # (elements on this rank, occurrences), for thresholds
    muon_matrices: tuple[int, ...]  # elements of each matrix that Muon updates, in the order of the model
    muon_by_shape: tuple[int, ...]  # the same in the order of Muon's own groups, the tallest first
    muon_workspace_bytes: int  # of the largest of them
    factored: int  # values that Adafactor keeps where it sees rows and columns
    order: TensorOrder  # every tensor in the order of the model
    experts: int = 0  # the experts of one layer: several tensors of one module, which stage 3 gathers together

    @property
    def muon(self) -> int:
        """Elements of all matrices that Muon updates."""
        return sum(self.muon_matrices)

    def persistent(self, threshold: int) -> int:
        """Elements in tensors of at most `threshold` elements, which stage 3 keeps gathered.

        Source: deepspeed/runtime/zero/parameter_offload.py `mark_persistent_parameters` (0.19.8).
        Leaves out: `stage3_model_persistence_threshold`, never reached at its default.
        """
        return sum(numel * count for numel, count in self.tensors if numel <= threshold)


@lru_cache(maxsize=64)
def adapter_sizes(shape: ModelShape, adapter: Adapter) -> RankSizes:
    """Count the tensors that an adapter adds, the only ones trained; they have no embedding and no head."""
    tensors = adapter_tensors(shape, adapter)
    total = sum(t.numel * t.count for t in tensors)
    return RankSizes(
        total=total,
        divided=0,
        largest_tensor=max(t.numel for t in tensors),
        layer=ceil_div(total, shape.layers),
        layer_divided=0,
        layer_largest_tensor=max(t.numel for t in tensors),
        embedding=0,
        head=0,
        tied=True,
        tensors=tuple((t.numel, t.count) for t in tensors),
        muon_matrices=tensor_order(tensors, shape.layers, lambda tensor: tensor.numel, tied=False).flat,
        muon_by_shape=_by_shape(tensors, 1),
        muon_workspace_bytes=max(muon_workspace_bytes(t.rows, t.columns) for t in tensors),
        factored=sum(_factored(t, 1) * t.count for t in tensors),
        order=tensor_order(tensors, shape.layers, lambda tensor: tensor.numel, tied=False),
    )


def with_adapter(base: RankSizes, adapter: RankSizes) -> RankSizes:
    """All parameters of a rank: the frozen ones and the adapter's."""
    return replace(
        base, total=base.total + adapter.total, layer=base.layer + adapter.layer, tensors=base.tensors + adapter.tensors
    )


@lru_cache(maxsize=64)
def rank_sizes(shape: ModelShape, tp: int) -> RankSizes:
    """Count the tensors of `shape` on the fullest of `tp` ranks."""
    tensors = parameter_tensors(shape)
    sizes = tuple((rank_numel(tensor, tp), tensor.count) for tensor in tensors)
    by_name = {tensor.name: rank_numel(tensor, tp) for tensor in tensors}
    in_layers = [tensor for tensor in tensors if tensor.name.startswith("layer/")]
    matrices = [tensor for tensor in tensors if muon_takes(tensor, shape.model_type)]
    embedding = by_name["embedding"]
    return RankSizes(
        total=rank_parameter_count(shape, tp),
        divided=sum(rank_numel(t, tp) * t.count for t in tensors if t.split is not Split.REPLICATED),
        largest_tensor=largest_tensor_numel(shape, tp),
        layer=layer_numel(shape, tp),
        layer_divided=sum(
            -(-rank_numel(t, tp) * t.count // shape.layers) for t in in_layers if t.split is not Split.REPLICATED
        ),
        layer_largest_tensor=max(rank_numel(tensor, tp) for tensor in in_layers),
        embedding=embedding,
        head=by_name.get("head", embedding),
        tied="head" not in by_name,
        tensors=sizes,
        muon_matrices=tensor_order(matrices, shape.layers, lambda tensor: rank_numel(tensor, tp), tied=False).flat,
        muon_by_shape=_by_shape(matrices, tp),
        muon_workspace_bytes=max((muon_workspace_bytes(*_rank_shape(t, tp)) for t in matrices), default=0),
        factored=sum(_factored(t, tp) * t.count for t in tensors),
        order=tensor_order(tensors, shape.layers, lambda tensor: rank_numel(tensor, tp), tied="head" not in by_name),
        experts=sum(rank_numel(tensor, tp) for tensor in tensors if tensor.name.startswith(EXPERT_PREFIX)),
    )


def _rank_shape(tensor: ParameterTensor, tp: int) -> tuple[int, int]:
    """Rows and columns on the fullest rank."""
    numel = rank_numel(tensor, tp)
    if tensor.split is Split.ROW:
        return tensor.rows, numel // tensor.rows
    return numel // tensor.columns, tensor.columns


def _by_shape(matrices: Iterable[ParameterTensor], tp: int) -> tuple[int, ...]:
    """Elements of every matrix, by rows and then columns, the largest first.

    Source: deepspeed/runtime/zero/muon/original_muon.py `MuonWithAuxAdam.__init__` (0.19.8); not under zero.Init,
    where every tensor looks empty.
    """
    tallest_first = sorted(matrices, key=lambda tensor: _rank_shape(tensor, tp), reverse=True)
    return tuple(chain.from_iterable(repeat(rank_numel(tensor, tp), tensor.count) for tensor in tallest_first))


def _factored(tensor: ParameterTensor, tp: int) -> int:
    """Row and column statistics of a matrix; a vector is kept whole."""
    rows, columns = _rank_shape(tensor, tp)
    return rows if columns == 1 else rows + columns
