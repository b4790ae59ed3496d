"""What `plan` and `estimate` print the same way."""

from __future__ import annotations

import json
from typing import Any

import typer

from planner.records.plan import Plan
from planner.search.summary import nearest_misses, rules_counted


def print_json(document: dict[str, Any]) -> None:
    """The document on stdout, and nothing else there."""
    typer.echo(json.dumps(document, indent=2))


def print_nothing_fits(plan: Plan) -> int:
    """The error line of an empty search; returns its exit code."""
    from planner.cli.main import complain
    from planner.errors import NothingFits

    request = plan.request
    counts = ", ".join(f"{count} {rule}" for rule, count in rules_counted(plan.rejected).items())
    nearest = nearest_misses(plan, limit=1)
    closest = f"; closest: {nearest[0].candidate.label} {nearest[0].detail}" if nearest else ""
    message = (
        f"none of {len(plan.rejected)} candidates fits `{request.model.name}` on {request.cluster.world_size} x "
        f"{request.cluster.gpu.name} at {request.workload.seq_len} tokens: {counts}{closest}"
    )
    hint = plan.remedies[0].change if plan.remedies else "a smaller model, shorter samples or more GPUs"
    return complain(message, hint, NothingFits.exit_code)
