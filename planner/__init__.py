"""dsplan: plans DeepSpeed training before anything runs. `from planner import plan, estimate, check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Eager, because the name is also that of the subpackage; it brings nothing heavy.
from planner.check import check

if TYPE_CHECKING:
    from planner.api import Answer, estimate, plan

__all__ = ["Answer", "check", "estimate", "plan"]


def __getattr__(name: str) -> Any:
    """The other public names, loaded on first use so that importing one module does not load them all."""
    if name in ("Answer", "estimate", "plan"):
        from planner import api

        return getattr(api, name)
    raise AttributeError(f"module `planner` has no attribute `{name}`")
