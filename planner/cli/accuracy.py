"""`dsplan accuracy`: the memory and speed models against what people measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.errors import PlannerError, nearest

EXAMPLES = (
    "Examples: dsplan accuracy | dsplan accuracy --memory --source stas-z3-offload | dsplan accuracy --speed | "
    "dsplan accuracy --points mine.jsonl --json"
)


def accuracy_command(
    *,
    memory: Annotated[
        bool, typer.Option("--memory", help="Errors of the predicted peak, by counter and source.")
    ] = False,
    fit: Annotated[bool, typer.Option("--fit", help="How often the verdict was wrong, by source.")] = False,
    speed: Annotated[
        bool, typer.Option("--speed", help="Errors of the predicted speed, rules of thumb beside, the order of plans.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="Beside DeepSpeed's estimators and the 16-bytes rule, on the same rows.")
    ] = False,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="Where the overhead beyond tensors and the default margin come from.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="Only the rows of one source.", show_default=False)
    ] = None,
    points: Annotated[
        str | None,
        typer.Option("--points", help="A JSONL file of measured runs [the table of dsplan].", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Figures and every row as JSON on stdout.")] = False,
) -> int:
    """Scores the models against measured runs; without a choice, memory, fit, the comparison and speed."""
    from planner.accuracy.points import packaged_points, read_points
    from planner.accuracy.score import score_all
    from planner.accuracy.speed import speed_row
    from planner.catalog.speed import speed_constants
    from planner.cli.show_answer import print_json
    from planner.report.accuracy import accuracy_document, fit_text, memory_text, overhead_text, peers_text
    from planner.report.speed_accuracy import speed_document, speed_text
    from planner.spec.request import DEFAULT_MARGIN

    found = read_points(Path(points)) if points is not None else packaged_points()
    if source is not None:
        names = sorted({point.source_name for point in found})
        found = tuple(point for point in found if point.source_name == source)
        if not found:
            near = nearest(source, names)
            hint = f"did you mean `{near[0]}`?" if near else f"the sources are {', '.join(names)}"
            raise PlannerError(f"no point is of the source `{source}`", hint=hint)
    every = not (memory or fit or peers or overhead or speed)
    scored = score_all(found if json or every or memory or fit or peers or overhead else ())
    timed = [point for point in found if "speed" in point.for_scoring] if json or every or speed else []
    speeds = [speed_row(point, speed_constants()) for point in timed]
    if json:
        print_json({**accuracy_document(scored, DEFAULT_MARGIN), **speed_document(speeds)})
        return 0
    parts = []
    if memory or every:
        parts.append(memory_text(scored))
    if fit or every:
        parts.append(fit_text(scored, DEFAULT_MARGIN))
    if peers or every:
        parts.append(peers_text(scored))
    if speed or every:
        parts.append(speed_text(speeds))
    if overhead:
        parts.append(overhead_text(scored))
    typer.echo("\n\n".join("\n".join(part) for part in parts))
    return 0
