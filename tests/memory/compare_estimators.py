"""Three predictors on the configurations that the real DeepSpeed engine was measured on, on CPU.

    python tests/memory/compare_estimators.py

Each run's peak is its fullest phase, tensors alone. Left out: runs with adapters and with offload, whose host bytes
the CPU engine counts with the rest, and fp32, which the other two have no formula for.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from test_engine_memory import RUNS, offloads, planned, predicted

from planner.accuracy.peers import PEERS, peer_bytes
from planner.accuracy.score import error_figures

MEASURED = ("forward", "backward", "step")


def fair(run: Mapping[str, Any]) -> bool:
    """Whether all three can be asked."""
    half = "bf16" in run["config"] or "fp16" in run["config"]
    return "peaks" in run and "adapter" not in run and half and not offloads(run)


def errors_by_predictor() -> dict[str, list[float]]:
    """Signed errors of every run that is fair to all."""
    errors: dict[str, list[float]] = {name: [] for name in ("dsplan", *PEERS)}
    with tempfile.TemporaryDirectory() as folder:
        for run in filter(fair, RUNS):
            model, workload, candidate = planned(run, Path(folder))
            phases = predicted(run, Path(folder))
            tokens = candidate.micro_batch * workload.seq_len
            answers = (max(phases[phase] for phase in MEASURED), *peer_bytes(model, candidate, tokens))
            measured = max(run["peaks"][phase] for phase in MEASURED)
            for name, size in zip(errors, answers, strict=True):
                errors[name].append(size / measured - 1)
    return errors


def main() -> None:
    """A Markdown table."""
    print("| predictor | runs | median | 90 % within | bias |")
    print("|---|---|---|---|---|")
    for name, found in errors_by_predictor().items():
        figures = error_figures(found)
        print(f"| {name} | {figures.rows} | {figures.median:.2%} | {figures.ninth_decile:.2%} | {figures.bias:+.2%} |")


if __name__ == "__main__":
    main()
