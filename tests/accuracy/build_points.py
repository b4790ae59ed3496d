"""Builds `planner/accuracy/data/points.jsonl` from a file with one measured run a line.

    python tests/accuracy/build_points.py POINTS.jsonl > planner/accuracy/data/points.jsonl

A line `{"source": {...}}` holds what all rows of a source share, a line `{"common": {...}}` what the rows below it
share besides; a key that a row leaves out is null.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from planner.accuracy.points import KEYS

Row = Mapping[str, Any]
ALL_LINEAR = ("gemma-2b", "gemma-2-2b", "gemma-2-9b", "gemma-7b", "phi-2", "Phi-3-mini-4k-instruct", "tiny-llama")
"""Models whose adapters sit on every linear layer in LitGPT's config_hub/finetune/<model>/{lora,qlora}.yaml."""
RANKS = {"tiny-llama": 32, "gemma-7b": 16}
GROUPED_BY = ("source_url", "model", "method", "gpu_class")


def kept(row: Row) -> dict[str, Any]:
    """The keys that a prediction or a score needs, without nulls."""
    stated = {**row, "reserved_gib": reserved_gib(row), "kernels": kernels(row), "nvme": nvme(row),
              "cpu_threads": row.get("cpu_threads") or cpu_threads(row)}  # fmt: skip
    return {key: value for key, value in stated.items()
            if key in KEYS and value not in (None, [])}  # fmt: skip


def reserved_gib(row: Row) -> float | None:
    """What the allocator held in a run whose tensors are the measured peak, where the source prints both."""
    if row.get("counter_class") not in ("allocated", "active"):
        return None
    gap = re.search(r"reserved-allocated gap = ([\d.]+) GiB", row.get("notes") or "")
    held = re.search(r"max reserved = ([\d.]+) GiB", row.get("notes") or "")
    if gap:
        return round(row["measured_peak_gib"] + float(gap.group(1)), 3)
    return float(held.group(1)) if held else None


def kernels(row: Row) -> str | None:
    """Which attention and norm kernels ran, where a source compares them."""
    stated = re.search(r"\bkernel=([^;]+)", row.get("notes") or "")
    return stated.group(1).strip() if stated else None


def nvme(row: Row) -> str | None:
    """The drive that states were offloaded to, where a source names it."""
    stated = re.search(r"\bNVMe \(([^)]+)\)", row.get("notes") or "")
    return stated.group(1).strip() if stated else None


def cpu_threads(row: Row) -> int | None:
    """The threads of a rank's optimizer on the CPU, where a source prints them."""
    stated = re.search(r"\bOMP_NUM_THREADS=(\d+)", row.get("notes") or "")
    return int(stated.group(1)) if stated else None


def corrected(row: Row) -> Row:
    """The row with what its source's own files say where the row says otherwise.

    Recomputation that the row's notes call an assumption is left open where a peak can decide it.
    """
    if row["source_name"] == "litgpt-hub" and row["method"] != "full":
        return _litgpt_hub(row)
    if "checkpointing not stated (none assumed)" in (row.get("notes") or "") and row["measured_peak_gib"]:
        return {**row, "grad_checkpoint": None, "missing": [*row["missing"], "grad_checkpoint"]}
    if row["source_name"] == "automodel" and row["source_url"].endswith("performance-summary.mdx"):
        return _automodel(row)
    special = {"qwen1": _qwen, "bigscience-logs": _jean_zay, "easycontext": _easycontext}.get(row["source_name"])
    return special(row) if special else row


def _litgpt_hub(row: Row) -> Row:
    """LitGPT's config hub: `lora_*: true` decides the targets, and every qlora.yaml has `quantize: bnb.nf4`."""
    everywhere = row["model"] in ALL_LINEAR
    rank = RANKS.get(row["model"], 8) if everywhere else 32
    quantized = " bnb.nf4" if row["method"].startswith("qlora") else ""
    word, sites = row["method"].split()[0], "all-linear" if everywhere else "(q,v)"
    return {**row, "method": f"{word} r{rank} {sites}{quantized}"}


def _automodel(row: Row) -> Row:
    """NeMo Automodel's examples/llm_benchmark/**/*_benchmark*.yaml, which its table names: adapters of `dim: 16` on
    `*_proj`, the loss `MaskedCrossEntropy`; several GPUs run with `activation_checkpointing` and `enable_compile`, one
    GPU with neither."""
    several = row["gpu_count"] > 1
    method = "lora r16 all-linear" if row["method"] == "lora" else row["method"]
    return {**row, "method": method, "grad_checkpoint": "full" if several else "none", "compile": several,
            "fused_ce": "none", "missing": [name for name in row["missing"] if name != "grad_checkpoint"]}  # fmt: skip


def _jean_zay(row: Row) -> Row:
    """BigScience's experiments/bandwidth/README.md: all-reduce of 4 GB among 16 nodes of the same machine, 44 to 57
    Gbit/s when it runs longer, with the factor of 2 for both ways. n16_32gb_all_reduce_bench.txt:
    torch.distributed.launch sets OMP_NUM_THREADS to 1, and the scripts of these runs, experiments/gpt2-*/*.slurm, start
    so."""
    return {**row, "network_gb_per_s": (44 + 57) / 2 / 8, "cpu_threads": 1}


def _easycontext(row: Row) -> Row:
    """EasyContext's accelerate_configs/zero3_offload.json: `offload_param` is the CPU too."""
    return {**row, "offload": "param+optimizer"}


def _qwen(row: Row) -> Row:
    """Qwen's finetune.py gives every adapter rank 64 and `lora_target_modules` c_attn, c_proj, w1, w2; its README says
    of full-parameter runs `we use DeepSpeed ZeRO 3 in this script`."""
    if row["method"] == "full":
        return {**row, "framework": "deepspeed (HF Trainer)", "zero_stage": 3,
                "missing": [name for name in row["missing"] if name != "zero_stage"]}  # fmt: skip
    if row["method"].startswith("lora") and "c_attn" not in row["method"]:
        rank = "" if "r64" in row["method"] else " r64"
        return {**row, "method": f"{row['method']}{rank} (c_attn,c_proj,w1,w2)"}
    return row


def scored(row: Row) -> bool:
    return bool(row["for_scoring"])


def shared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Keys with one value in all rows."""
    first, *others = rows
    return {key: value for key, value in first.items() if key != "id" and all(o.get(key) == value for o in others)}


def without(row: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """What `known` does not say already."""
    return {key: value for key, value in row.items() if key not in known}


def table_lines(rows: list[Row]) -> Iterator[str]:
    """Sources in the order of their first row; rows of one model and method follow a line of common values."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if scored(row):
            by_source.setdefault(row["source_name"], []).append(kept(corrected(row)))
    for members in by_source.values():
        source = shared(members)
        yield line({"source": source})
        rest, before = [without(row, source) for row in members], {}
        for _, group in groupby(rest, key=lambda row: tuple(row.get(key) for key in GROUPED_BY)):
            grouped = list(group)
            common = shared(grouped) if len(grouped) > 1 else {}
            if common or before:
                yield line({"common": common})
            before = common
            yield from (line(without(row, common)) for row in grouped)


def line(value: Row) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    print("\n".join(table_lines(rows)))


if __name__ == "__main__":
    main()
