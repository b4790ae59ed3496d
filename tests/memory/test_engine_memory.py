"""The memory model against the bytes that the real DeepSpeed engine allocates on CPU, phase by phase.

    python tests/memory/test_engine_memory.py             prints every comparison, and the errors by phase
    python tests/memory/test_engine_memory.py z2_ov z3    prints these

The stored peaks come from `tests/oracles/measure_engine.py`; a slow test measures some of them again.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.launch.memory_check import predicted_bytes
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.records.request import Attention, Loss, Workload
from planner.spec import ds_config
from planner.spec.hf_config import shape_from_config

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "engine_memory.json").read_text(encoding="utf-8"))
RUNS: list[dict[str, Any]] = GOLDEN["runs"]
TOLERANCE = {"load": 0.02, "init": 0.02, "forward": 0.02, "backward": 0.01, "step": 0.01}
OFFLOAD_TOLERANCE = {"load": 0.04, "init": 0.04, "forward": 0.04, "backward": 0.03, "step": 0.03}


def planned(run: Mapping[str, Any], folder: Path) -> tuple[ModelShape, Workload, Candidate]:
    """What `dsplan estimate --config` would plan with."""
    fields = GOLDEN["models"][run["model"]]
    model = shape_from_config(fields, name=run["model"], source="test")
    file = folder / "ds_config.json"
    file.write_text(json.dumps(run["config"]))
    pinned = ds_config.read(file, world_size=run["ranks"], hidden=model.hidden)
    tp = pinned.fields["tp"]
    candidate = Candidate(
        zero=ZeroStage(pinned.fields["zero"]),
        degrees=Degrees(tp=tp, dp=run["ranks"] // tp),
        checkpointing=Checkpointing.FULL if run["checkpointing"] else Checkpointing.NONE,
        offload=Offload(pinned.fields["offload"]),
        micro_batch=pinned.fields["micro_batch"],
        accumulation=pinned.fields["accumulation"],
        settings=pinned.settings,
    )
    adapter = run.get("adapter")
    workload = Workload(
        seq_len=run["seq"],
        global_batch=None,
        accumulation=None,
        precision=Precision(pinned.fields["precision"]),
        attention=Attention.SDPA,
        loss=Loss.STANDARD,
        tokens=None,
        adapter=Adapter(method=Method.LORA, rank=adapter["rank"], targets=tuple(adapter["targets"]))
        if adapter
        else None,
    )
    return model, workload, candidate


def predicted(run: Mapping[str, Any], folder: Path) -> dict[str, int]:
    """Bytes of the fullest rank by phase."""
    return {phase.value: size for phase, size in predicted_bytes(*planned(run, folder)).items()}


def offloads(run: Mapping[str, Any]) -> bool:
    return "offload_optimizer" in run["config"]["zero_optimization"]


def tolerances(run: Mapping[str, Any]) -> Mapping[str, float]:
    return OFFLOAD_TOLERANCE if offloads(run) else TOLERANCE


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_every_phase_is_what_the_engine_allocates(run: dict[str, Any], tmp_path: Path) -> None:
    expected, compared = predicted(run, tmp_path), 0
    for phase, allowed in tolerances(run).items():
        measured = run["peaks"][phase]
        assert abs(expected[phase] - measured) <= allowed * measured, f"{phase}: {expected[phase]:,} for {measured:,}"
        compared += 1
    assert compared == 5


def zero(run: Mapping[str, Any], key: str, default: Any = None) -> Any:
    return run["config"]["zero_optimization"].get(key, default)


def whole(run: Mapping[str, Any]) -> int:
    return int(run["parameters"])


def at_stage(stage: int) -> Callable[[Mapping[str, Any]], bool]:
    return lambda run: zero(run, "stage") == stage


COVERED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    **{f"stage {stage}": at_stage(stage) for stage in range(4)},
    **{f"dp {ranks}": lambda run, ranks=ranks: run["ranks"] == ranks for ranks in (2, 3, 4)},
    "tensor parallelism": lambda run: "tensor_parallel" in run["config"] and run["ranks"] == 2,
    "tensor and data parallelism": lambda run: "tensor_parallel" in run["config"] and run["ranks"] == 4,
    **{
        f"accumulation {steps}": lambda run, steps=steps: run["config"]["gradient_accumulation_steps"] == steps
        for steps in (1, 2, 3)
    },
    "micro-batch above 1": lambda run: run["config"]["train_micro_batch_size_per_gpu"] > 1,
    "checkpointing": lambda run: run["checkpointing"],
    "no checkpointing": lambda run: not run["checkpointing"],
    "optimizer offload": lambda run: offloads(run) and not zero(run, "offload_param"),
    "optimizer and parameter offload": lambda run: bool(zero(run, "offload_param")),
    "reduce bucket below every matrix": lambda run: 0 < sizes(run, "reduce_bucket_size") < 3_000_000,
    "reduce bucket above the model": lambda run: sizes(run, "reduce_bucket_size") > whole(run),
    "stage 1, reduce bucket of about a layer": lambda run: zero(run, "stage") == 1 and bucket_of_layers(run, 0.7, 1.4),
    "stage 1, the same with accumulation": lambda run: (
        zero(run, "stage") == 1
        and bucket_of_layers(run, 0.7, 2)
        and run["config"]["gradient_accumulation_steps"] > 1
        and zero(run, "overlap_comm")
    ),
    "prefetch bucket below a layer": lambda run: 0 < sizes(run, "stage3_prefetch_bucket_size") < 3_000_000,
    "prefetch bucket above a layer": lambda run: sizes(run, "stage3_prefetch_bucket_size") > 15_000_000,
    "sub_group_size below the model": lambda run: 0 < sizes(run, "sub_group_size") < whole(run) // 4,
    "sub_group_size below every matrix": lambda run: 0 < sizes(run, "sub_group_size") < 1_000_000,
    "sub_group_size above the model": lambda run: sizes(run, "sub_group_size") > whole(run),
    "a reuse distance that binds": lambda run: 10_000_000 < sizes(run, "stage3_max_reuse_distance") < whole(run),
    "live parameters that bind": lambda run: 10_000_000 < sizes(run, "stage3_max_live_parameters") < whole(run),
    "persistence threshold 0": lambda run: zero(run, "stage3_param_persistence_threshold") == 0,
    "persistence of whole matrices": lambda run: sizes(run, "stage3_param_persistence_threshold") > 2_000_000,
    **{
        f"fp32 accumulation, stage {stage}": lambda run, stage=stage: (
            "data_types" in run["config"] and zero(run, "stage") == stage
        )
        for stage in (1, 2, 3)
    },
    "fp16": lambda run: "fp16" in run["config"],
    "fp32": lambda run: "fp16" not in run["config"] and "bf16" not in run["config"],
    "tied embeddings": lambda run: run["model"] == "llama-tied",
    "grouped-query attention": lambda run: run["model"] == "llama-gqa",
    "query and key norms": lambda run: run["model"] == "qwen3",
    "GPT-2": lambda run: run["model"] == "gpt2",
    "Mixtral": lambda run: run["model"] == "mixtral",
    "DeepSpeed's defaults": lambda run: set(run["config"]["zero_optimization"]) == {"stage"},
    "the Trainer's auto values": lambda run: "auto" in json.dumps(run["config"]),
    "frozen weights": lambda run: "adapter" in run,
    "hpZ": lambda run: zero(run, "zero_hpz_partition_size", 1) > 1,
}


def bucket_of_layers(run: Mapping[str, Any], least: float, most: float) -> bool:
    """Whether the reduce bucket is so many times the parameters that there are for each layer."""
    fields = GOLDEN["models"][run["model"]]
    layer = whole(run) / fields.get("num_hidden_layers", fields.get("n_layer"))
    tp = run["config"].get("tensor_parallel", {}).get("autotp_size", 1)
    return least <= sizes(run, "reduce_bucket_size") * tp / layer <= most


def sizes(run: Mapping[str, Any], key: str) -> int:
    """A number of elements that the configuration states; 0 where it states none."""
    value = zero(run, key, 0)
    return value if isinstance(value, int) else 0


@pytest.mark.parametrize("feature", COVERED)
def test_the_runs_cover(feature: str) -> None:
    assert any(COVERED[feature](run) for run in RUNS)


def test_there_are_enough_runs() -> None:
    assert len(RUNS) >= 48
    assert all("peaks" in run for run in RUNS)
    assert {"deepspeed", "torch", "transformers", "peft"} == set(GOLDEN["versions"])


@pytest.mark.slow
@pytest.mark.deepspeed
def test_the_stored_peaks_are_what_the_engine_allocates_today() -> None:
    pytest.importorskip("deepspeed")
    sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))
    from measure_engine import measure

    again = measure(GOLDEN["models"], [run for run in RUNS if run["name"] in ("z1_ck", "z2_ov", "z3_pref")])
    assert len(again) == 3
    for name, values in again.items():
        run = next(run for run in RUNS if run["name"] == name)
        assert values["parameters"] == run["parameters"]
        for phase, size in run["peaks"].items():
            assert values["peaks"][phase] == pytest.approx(size, rel=0.005), f"{name} {phase}"


def main(names: list[str]) -> None:
    """Bytes per parameter, measured and predicted, and the errors by phase; `!` marks what is out of tolerance."""
    errors: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            if "peaks" not in run or (names and run["name"] not in names):
                continue
            expected, cells = predicted(run, Path(folder)), []
            for phase, measured in run["peaks"].items():
                error = expected[phase] / measured - 1
                errors.setdefault((phase, offloads(run)), []).append(abs(error))
                mark = "!" if abs(error) > tolerances(run)[phase] else " "
                per = run["parameters"]
                cells.append(f"{phase} {measured / per:7.3f} {expected[phase] / per:7.3f} {error:+6.2%}{mark}")
            print(f"{run['name']:<15}", " ".join(cells))
    for (phase, offloaded), found in sorted(
        errors.items(), key=lambda item: (item[0][1], list(TOLERANCE).index(item[0][0]))
    ):
        found.sort()
        print(
            f"{phase + (' with offload' if offloaded else ''):<22} {len(found):>3} cases, "
            f"median {statistics.median(found):.2%}, 90 % within {found[int(0.9 * (len(found) - 1))]:.2%}, "
            f"largest {found[-1]:.2%}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
