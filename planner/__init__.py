"""dsplan: plans DeepSpeed training before anything runs. `from planner import plan, estimate, check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import Answer, estimate, plan
    from planner.check import check

__all__ = ["Answer", "check", "estimate", "plan"]


def __getattr__(name: str) -> Any:
    """The public names, loaded on first use so that importing one module does not load them all."""
    if name in ("Answer", "estimate", "plan"):
        from planner import api

        return getattr(api, name)
    if name == "check":
        from planner.check import check

        return check
    raise AttributeError(f"module `planner` has no attribute `{name}`")
