"""Counting the bytes of tensors while a model runs: goes in, every operator's result; comes out, a timeline.

Tensors are fake (no storage), so nothing is computed and a model of any width can be followed.
"""

from __future__ import annotations

import weakref
from itertools import accumulate
from typing import Any

MOST_OPERATORS = 25_000
"""A step of a few layers has some thousands, one that loops over chunks of 64 tokens some ten thousands; more is a loop
over single tokens that stands in for a missing kernel."""


class TooManyOperators(Exception):
    """The model runs a loop that no trace should follow."""


class Timeline:
    """Storages as they appear and go. A point in time is a number of changes."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int]] = []  # (storage, signed bytes)
        self._gradients: set[int] = set()
        self._living: dict[int, tuple[int, Any]] = {}  # address -> (storage, weak reference)

    def now(self) -> int:
        """The present point in time."""
        return len(self._changes)

    def ignore(self, tensor: Any) -> None:
        """Never count the storage of `tensor`."""
        storage = tensor.untyped_storage()
        self._living[storage._cdata] = (-1, weakref.ref(storage))

    def see(self, tensor: Any) -> None:
        """Count the storage of `tensor` from now until it is freed."""
        storage = tensor.untyped_storage()
        address, size_bytes = storage._cdata, storage.nbytes()
        known = self._living.get(address)
        if known is not None and known[1]() is storage:
            return
        number = len(self._changes)

        def freed(reference: Any) -> None:
            self._changes.append((number, -size_bytes))
            if self._living[address][1] is reference:
                del self._living[address]

        self._living[address] = (number, weakref.ref(storage, freed))
        self._changes.append((number, size_bytes))

    def is_gradient(self, tensor: Any) -> None:
        """Leave the storage of `tensor` out: the gradient of a weight is no activation."""
        known = self._living.get(tensor.untyped_storage()._cdata)
        if known is not None:
            self._gradients.add(known[0])

    def levels(self) -> list[int]:
        """Bytes alive at every point in time, gradients of weights left out."""
        return list(accumulate((0 if number in self._gradients else size for number, size in self._changes), initial=0))


def watching(timeline: Timeline) -> Any:
    """A context in which `timeline` sees the result of every operator."""
    from torch import Tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        operators = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operators += 1
            if self.operators > MOST_OPERATORS:
                raise TooManyOperators
            result = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    timeline.see(leaf)
            return result

    return Watch()
