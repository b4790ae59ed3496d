"""`dsplan show models|gpus|instances|versions [NAME]`: the catalogue, each row with its source."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from planner.errors import PlannerError, UnknownName, nearest
from planner.report.table import table

NOUNS = {"models": "model", "gpus": "GPU", "instances": "instance", "versions": "fact about releases"}
KINDS = tuple(NOUNS)
LIST_WIDTH = 140  # a source is cut here; `dsplan show gpus NAME` prints it whole


def show_command(
    kind: Annotated[str, typer.Argument(metavar="models|gpus|instances|versions", help="Which table.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One row, every field.", show_default=False)
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Rows as JSON on stdout.")] = False,
) -> int:
    """The models, GPUs or instance types that dsplan knows, and what differs between releases of DeepSpeed."""
    from planner.cli.show_answer import print_json

    rows = rows_of(kind)
    if name is not None:
        row = find_row(kind, name, rows)
        if json:
            print_json(row)
        else:
            typer.echo(
                "\n".join(
                    table(("", ""), [(key, text_of(value)) for key, value in row.items()], left=frozenset({0, 1}))[1:]
                )
            )
        return 0
    if json:
        print_json({kind: rows})
    else:
        columns = COLUMNS[kind]
        cells = [tuple(text_of(row.get(column, "")) for column in columns) for row in rows]
        lines = table(columns, cells, left=frozenset(range(len(columns))))
        typer.echo("\n".join(line if len(line) <= LIST_WIDTH else f"{line[: LIST_WIDTH - 3]}..." for line in lines))
    return 0


COLUMNS = {
    "models": ("name", "parameters", "model_type", "source"),
    "gpus": ("name", "memory_gib", "bf16_tflop_per_s", "source"),
    "instances": ("name", "gpu", "gpus", "host_ram_gib", "source"),
    "versions": ("name", "package", "since", "holds"),
}


def rows_of(kind: str) -> list[dict[str, Any]]:
    """The rows of one table."""
    if kind == "models":
        from planner.catalog.models import model_rows

        return [asdict(row) for row in model_rows()]
    if kind in ("gpus", "instances"):
        from planner.catalog.tables import gpu_rows, node_rows

        return [dict(row) for row in (gpu_rows() if kind == "gpus" else node_rows())]
    if kind == "versions":
        from planner.catalog.versions import version_rows

        return [dict(row) for row in version_rows()]
    near = nearest(kind, KINDS)
    raise PlannerError(
        f"there is no table `{kind}`",
        hint=f"did you mean `{near[0]}`?" if near else f"the tables are {', '.join(KINDS)}",
    )


def find_row(kind: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of that name or alias."""
    from planner.catalog.names import normalise

    wanted = normalise(name)
    spellings: dict[str, dict[str, Any]] = {}
    for row in rows:
        for spelling in (row["name"], *row.get("aliases", ())):
            spellings.setdefault(normalise(str(spelling)), row)
    if wanted in spellings:
        return spellings[wanted]
    raise UnknownName(NOUNS[kind], name, [row["name"] for row in rows], listing=f"dsplan show {kind}")


def text_of(value: object) -> str:
    """A cell: lists joined, whole numbers grouped."""
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
