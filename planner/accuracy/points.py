"""The measured points that ship with dsplan: published runs with what they were and how much memory they took.

In: nothing, or a JSONL file of the same keys. Out: `Point` records. Question: which measurements is a model scored on?

One JSON object a line. `{"source": {...}}` holds what all rows of a source share, `{"common": {...}}` what the rows
below it share besides, each up to the next line of its kind. A key that a row leaves out is null, and keys that are not
fields of `Point` are ignored. Every row names its source and where to read it. The keys:

* `hidden` to `tied`: the geometry as printed by the source. `gated_mlp`: three MLP matrices of `ffn`. `tied`: one
  tensor for the embedding and the output matrix in that run.
* `zero_stage` counts FSDP's full sharding as 3; `dp` is what remains after `tp`, `sp` and `cp`; `micro_batch` is of one
  GPU; `fused_ce` names the fused or chunked loss, `none` a whole one.
* `counter_class`: what `measured_peak_gib` counts: `allocated` and `active` are tensors, `reserved` is what torch's
  allocator holds, `nvidia_smi` is the whole card, `unknown` is not said.
* `kernels`: which kernels attention and norms ran with, where a source compares them; read from `kernel=` in `notes`
  where the key is missing.
* `nvme`: the drive that states were offloaded to, where a source names it; read from `notes` where the key is missing.
* `network_gb_per_s`: what the ports of one node carry, where a source measured its collectives; `cpu_threads`: what the
  optimizer on the CPU may use in each rank.
* `reserved_gib`: what the allocator held in the same run, where a source prints that beside the tensors.
* `for_scoring`: the scores that a row is good for: `memory`, `fit`, `speed`. `missing`: inputs the source leaves out.
* `quality`: A an exact number of a nearly complete configuration, B with one gap or read off a chart, C for ordering.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.errors import PlannerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured run. None: the source does not say."""

    id: str
    source_name: str
    source_url: str | None = None
    model: str | None = None
    params_b: float | None = None
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    gated_mlp: bool | None = None
    tied: bool | None = None
    method: str | None = None
    framework: str | None = None
    optimizer: str | None = None
    gpu_class: str | None = None
    gpu_mem_gb: float | None = None
    gpu_count: int | None = None
    nodes: int | None = None
    zero_stage: int | None = None
    tp: int | None = None
    pp: int | None = None
    sp: int | None = None
    cp: int | None = None
    dp: int | None = None
    ep: int | None = None
    seq_parallel_megatron: bool | None = None
    dtype: str | None = None
    param_dtype: str | None = None
    grad_checkpoint: str | None = None
    flash_attn: bool | None = None
    fused_ce: str | None = None
    compile: bool | None = None
    kernels: str | None = None
    nvme: str | None = None
    network_gb_per_s: float | None = None
    cpu_threads: int | None = None
    offload: str | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    grad_accum: int | None = None
    global_batch: int | None = None
    measured_peak_gib: float | None = None
    counter_class: str | None = None
    reserved_gib: float | None = None
    outcome: str = "fit"
    host_ram_gb: float | None = None
    host_ram_kind: str | None = None
    tokens_per_s_per_gpu: float | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None
    tflops_kind: str | None = None
    mfu_percent: float | None = None
    hfu_percent: float | None = None
    quality: str | None = None
    for_scoring: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def firm(self) -> bool:
        """Whether every essential input is given, and the numbers are good for more than an order."""
        return not self.missing and self.quality != "C"


KEYS = tuple(field.name for field in fields(Point))

TABLE = "points.jsonl"
IN_NOTES = {"kernels": re.compile(r"\bkernel=([^;]+)"), "nvme": re.compile(r"\bNVMe \(([^)]+)\)")}
"""Where notes say what has a key of its own."""
LARGEST = 10**15


def packaged_points() -> tuple[Point, ...]:
    """The table that ships with dsplan."""
    text = (files("planner.accuracy") / "data" / TABLE).read_text(encoding="utf-8")
    return tuple(_points(text, TABLE))


def read_points(path: Path) -> tuple[Point, ...]:
    """The points of a JSONL file; raises PlannerError with the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlannerError(f"cannot read `{path}`: {error}", hint="give a JSONL file of measured points") from error
    points = tuple(_points(text, str(path)))
    if not points:
        raise PlannerError(f"`{path}` holds no points", hint="one JSON object a line, with the keys of a measured run")
    return points


def _points(text: str, name: str) -> Iterator[Point]:
    source: Mapping[str, Any] = {}
    common: Mapping[str, Any] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"line {number} of `{name}`"
        row = _object(line, where)
        if set(row) == {"source"} and isinstance(row["source"], dict):
            source, common = row["source"], {}
        elif set(row) == {"common"} and isinstance(row["common"], dict):
            common = row["common"]
        else:
            yield _point({**source, **common, **row}, where)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise PlannerError(f"{where} is no JSON: {error}", hint="one JSON object a line") from error
    if not isinstance(row, dict):
        raise PlannerError(f"{where} is no JSON object", hint="one JSON object a line")
    return row


def _point(row: Mapping[str, Any], where: str) -> Point:
    values: dict[str, Any] = {}
    for field in fields(Point):
        value = row.get(field.name)
        if value is None and field.name in IN_NOTES:
            stated = IN_NOTES[field.name].search(str(row.get("notes") or ""))
            value = stated.group(1).strip() if stated else None
        if value is None:
            continue
        values[field.name] = _value(str(field.type), value, f"`{field.name}` in {where}")
    for name in ("id", "source_name"):
        if name not in values:
            raise PlannerError(f"{where} has no `{name}`", hint="every point names itself and its source")
    return Point(**values)


def _value(kind: str, value: Any, what: str) -> Any:
    """The value in the type of its field; a number given as another kind of number is converted."""
    if kind.startswith("str") and isinstance(value, bool):
        return "fused" if value else "none"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    wanted = {part.strip() for part in kind.split("|")} - {"None"}
    if wanted == {"tuple[str, ...]"} and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    number = number and math.isfinite(value) and 0 <= value <= LARGEST
    if "int" in wanted and number and value == int(value):
        return int(value)
    if "float" in wanted and number:
        return float(value)
    if ("str" in wanted and isinstance(value, str)) or ("bool" in wanted and isinstance(value, bool)):
        return value
    raise PlannerError(f"{what} is `{value!r}`", hint=f"it is {' or '.join(sorted(wanted))}, or null")
