"""Every optimizer against the bytes that the real DeepSpeed engine allocates for it on CPU, phase by phase.

    python tests/memory/test_optimizers.py     prints every comparison, and the errors by phase

The stored peaks and states come from `tests/oracles/measure_optimizers.py`, which says how CUDA's kernels are stood in
for; the formulas speak for CUDA. A slow test measures two of them again.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.geometry.params import parameter_tensors
from planner.memory.estimate import estimate_memory
from planner.memory.host_terms import BESIDE_THE_ENGINE
from planner.memory.optimizers import muon_takes, state_source
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import MOMENTS_OF, Device, MemoryEstimate, Moment, Phase
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention, Loss, Optimizer, Workload
from planner.spec import ds_config
from planner.spec.cluster import parse_cluster
from planner.spec.hf_config import shape_from_config

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "optimizer_memory.json").read_text(encoding="utf-8"))
RUNS: list[dict[str, Any]] = GOLDEN["runs"]
TOLERANCE = {"init": 0.02, "forward": 0.02, "backward": 0.02, "step": 0.01}
OFFLOAD_TOLERANCE = {"init": 0.04, "forward": 0.04, "backward": 0.04, "step": 0.03}
MUON_AT_WORK = ("backward/muon", "step/update")
# What the model gets wrong, and by how much.
KNOWN = {
    ("z3_bucket_muon", "backward"): 0.03,  # reduced in the bucket itself; counted with the copy of `reduce_scatter`
    ("z3_bucket_muon", "step"): 0.015,  # chunks as large as a sub-group; the cause is open
}
STATE_BYTES = {"float32": 4, "bfloat16": 2, "uint8": 1}


@cache
def model(name: str) -> ModelShape:
    return shape_from_config(GOLDEN["models"][name], name=name, source="test")


def optimizer_of(run: Mapping[str, Any], pinned: ds_config.Pinned) -> Optimizer:
    return Optimizer(run.get("script_optimizer", pinned.fields.get("optimizer")))


def predicted(run: Mapping[str, Any], folder: Path) -> tuple[MemoryEstimate, Optimizer]:
    file = folder / "ds_config.json"
    file.write_text(json.dumps(run["config"]))
    pinned = ds_config.read(file, world_size=run["ranks"], hidden=model(run["model"]).hidden)
    optimizer = optimizer_of(run, pinned)
    candidate = Candidate(
        zero=ZeroStage(pinned.fields["zero"]),
        degrees=Degrees(tp=1, dp=run["ranks"]),
        checkpointing=Checkpointing.FULL if run["checkpointing"] else Checkpointing.NONE,
        offload=Offload(pinned.fields["offload"]),
        micro_batch=1,
        accumulation=pinned.fields["accumulation"],
        settings=replace(pinned.settings, pin_memory=False),  # pinning does nothing on a CPU accelerator
    )
    workload = Workload(
        seq_len=run["seq"],
        global_batch=None,
        accumulation=None,
        precision=Precision(pinned.fields["precision"]),
        attention=Attention.SDPA,
        loss=Loss.STANDARD,
        tokens=None,
        optimizer=optimizer,
    )
    cluster = parse_cluster(f"{run['ranks']}xA100-80G", host_ram_gib=None)
    return estimate_memory(model(run["model"]), cluster, workload, candidate), optimizer


def engine_bytes(memory: MemoryEstimate, phase: Phase, run: Mapping[str, Any]) -> int:
    """Tensor bytes of one rank at the fullest moment: device and host together, as a CPU accelerator counts them.

    Muon orthogonalises in fp32 here, in twice the bytes of a GPU's half precision.
    """
    ranks, workspace = run["ranks"], rank_sizes(model(run["model"]), 1).muon_workspace_bytes

    def alive(moment: Moment) -> int:
        orthogonalises = any(t.name in MUON_AT_WORK and moment in t.moments for t in memory.terms)
        host = sum(
            term.size_bytes // ranks
            for term in memory.terms
            if term.device is Device.HOST and moment in term.moments and term.name not in BESIDE_THE_ENGINE
        )
        return memory.moment_bytes[Device.GPU][moment] + host + (workspace if orthogonalises and is_muon(run) else 0)

    return max(alive(moment) for moment in MOMENTS_OF[phase])


def is_muon(run: Mapping[str, Any]) -> bool:
    return bool(run["config"].get("optimizer", {}).get("type") == "Muon")


def tolerances(run: Mapping[str, Any]) -> dict[str, float]:
    return OFFLOAD_TOLERANCE if "offload_optimizer" in run["config"]["zero_optimization"] else TOLERANCE


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_every_phase_is_what_the_engine_allocates(run: dict[str, Any], tmp_path: Path) -> None:
    memory, _ = predicted(run, tmp_path)
    compared = 0
    for name, tolerance in tolerances(run).items():
        measured = run["peaks"][name]
        expected = engine_bytes(memory, Phase(name), run)
        allowed = KNOWN.get((run["name"], name), tolerance)
        assert abs(expected - measured) <= allowed * measured, f"{name}: {expected:,} for {measured:,}"
        compared += 1
    assert compared == 4


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_states_are_what_the_engines_optimizer_holds(run: dict[str, Any], tmp_path: Path) -> None:
    memory, optimizer = predicted(run, tmp_path)
    held = sum(STATE_BYTES[kind.split()[1]] * elements for kind, elements in run["states"].items())
    states = [t for t in memory.terms if t.name in ("states/optimizer", "states/muon_momentum")]
    ours = sum(t.size_bytes if t.device is Device.HOST else t.size_bytes * run["ranks"] for t in states)
    if optimizer is Optimizer.MUON and run["config"]["zero_optimization"]["stage"] in (1, 2):
        momentum = sum(n * STATE_BYTES[k.split()[1]] for k, n in run["states"].items() if k.startswith("momentum"))
        held += momentum  # its second copy is no optimizer state
    assert ours == pytest.approx(held, rel=0.015)
    for term in states:
        assert optimizer.value.removesuffix("-8bit") in term.formula.lower()
        assert term.device is Device.HOST or term.source == state_source(optimizer)


def test_the_cases_cover_every_optimizer_at_every_stage() -> None:
    seen = {(run["optimizer"], run["config"]["zero_optimization"]["stage"]) for run in RUNS}
    for stage in range(4):
        for name in ("AdamW", "Adafactor", "FusedLion", "MuonWithAuxAdam", "SGD"):
            assert (name, stage) in seen, (name, stage)
    pure = {
        run["config"]["zero_optimization"]["stage"]
        for run in RUNS
        if run["config"].get("bf16", {}).get("bf16_optimizer_states")
    }
    assert pure == {1, 2, 3}
    assert {run["optimizer"] for run in RUNS} >= {"DeepSpeedCPUAdam", "DeepSpeedCPULion"}
    assert len(RUNS) >= 50


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gpt_neox", "mixtral", "bloom", "mpt", "gptj"])
def test_muon_takes_the_matrices_that_deepspeed_tags(kind: str) -> None:
    torch = pytest.importorskip("torch")
    deepspeed = pytest.importorskip("deepspeed")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind)
    shape = shape_from_config(config.to_dict(), name=kind, source="test")
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(config)
    deepspeed.set_optimizer_flags(type("Muon", (), {"optimizer_name": "muon"}), whole)
    tagged = sum(p.numel() for p in whole.parameters() if p.use_muon)
    assert 0 < tagged < sum(p.numel() for p in whole.parameters())
    assert rank_sizes(shape, 1).muon == tagged
    assert tagged == sum(t.numel * t.count for t in parameter_tensors(shape) if muon_takes(t, kind))


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_stored_peaks_are_what_the_engine_allocates_today() -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("bitsandbytes")
    sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))
    from measure_optimizers import measure

    names = ("z2_8bit", "z3_adafactor")
    again = measure(GOLDEN["models"], [run for run in RUNS if run["name"] in names])
    assert set(again) == set(names)
    for run in RUNS:
        if run["name"] in names:
            assert again[run["name"]]["states"] == run["states"]
            for phase, size in run["peaks"].items():
                assert again[run["name"]]["peaks"][phase] == pytest.approx(size, rel=0.02)


def main() -> None:
    """Bytes per parameter, measured and predicted, and the errors by phase."""
    errors: dict[str, list[float]] = {phase: [] for phase in TOLERANCE}
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            if "peaks" not in run:
                continue
            memory, _ = predicted(run, Path(folder))
            cells = []
            for phase in TOLERANCE:
                measured, expected = run["peaks"][phase], engine_bytes(memory, Phase(phase), run)
                errors[phase].append(abs(expected / measured - 1))
                share = f"{expected / measured - 1:+.1%}"
                cells.append(f"{phase} {measured / run['parameters']:.3f} {expected / run['parameters']:.3f} {share}")
            print(f"{run['name']:<18}", "  ".join(cells))
    for phase, found in errors.items():
        print(f"{phase}: {len(found)} cases, median {statistics.median(found):.1%}, largest {max(found):.1%}")


if __name__ == "__main__":
    main()
