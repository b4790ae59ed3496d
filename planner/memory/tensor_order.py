"""The tensors of a model one after the other: what falls into which partition, and in which order gradients come.

In: tensors with counts, as `geometry/params.py` lists them. Out: `TensorOrder`, elements by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.records.model import ParameterTensor

AFTER_LAYERS = ("final_norm", "head")


@dataclass(frozen=True, kw_only=True)
class TensorOrder:
    """Elements of tensors on one rank, in the order of the model's modules."""

    before: tuple[int, ...]  # embeddings
    layers: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]  # final norm and head
    tied: bool = False  # whether the head is the embedding

    @cached_property
    def flat(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.before, *(numel for layer in self.layers for numel in layer), *self.after)

    @property
    def last_matrix(self) -> int:
        """The last matrix of the last layer, whose gradient comes first; vectors beside it do not matter."""
        layer = self.layers[-1] if self.layers else ()
        return next((numel for numel in reversed(layer) if 8 * numel >= max(layer)), 0)

    def layers_in_first_part(self, share: int) -> int:
        """Layers that lie wholly in the first `share` elements."""
        end = sum(self.before)
        for index, layer in enumerate(self.layers):
            end += sum(layer)
            if end > share:
                return index
        return len(self.layers)


def tensor_order(
    tensors: Sequence[ParameterTensor], layers: int, numel: Callable[[ParameterTensor], int], *, tied: bool
) -> TensorOrder:
    """The order of the transformers modules: attention, MLP, norms in every layer; dense layers before expert layers.

    Leaves out: modules that put a norm first (GPT-2, NeoX), which shifts partitions by a norm's elements.
    """
    in_layers = [tensor for tensor in tensors if tensor.name.startswith("layer/")]
    in_layers.sort(key=lambda tensor: tensor.name.startswith("layer/norm"))
    kinds: dict[tuple[int, ...], tuple[int, ...]] = {}  # by the places of their tensors
    ordered = []
    for index in range(layers):
        present = tuple(place for place, tensor in enumerate(in_layers) if _in_layer(tensor, index, layers))
        if present not in kinds:
            held = [in_layers[place] for place in present]
            kinds[present] = tuple(numel(t) for t in held for _ in range(max(1, t.count // layers)))
        ordered.append(kinds[present])
    outside = [tensor for tensor in tensors if not tensor.name.startswith("layer/")]
    return TensorOrder(
        before=tuple(numel(t) for t in outside if not t.name.startswith(AFTER_LAYERS) for _ in range(t.count)),
        layers=tuple(ordered),
        after=tuple(numel(t) for t in outside if t.name.startswith(AFTER_LAYERS) for _ in range(t.count)),
        tied=tied,
    )


def _in_layer(tensor: ParameterTensor, index: int, layers: int) -> bool:
    """Whether layer `index` has that tensor: a tensor that not all layers have is the dense MLP of the first ones or
    the experts of the last ones."""
    if tensor.count >= layers:
        return True
    expert = "expert" in tensor.name or "router" in tensor.name or "shared" in tensor.name
    return index >= layers - tensor.count if expert else index < tensor.count
