"""What the real DeepSpeed engine allocates on CPU under each optimizer: `tests/golden/optimizer_memory.json`.

    python tests/oracles/measure_optimizers.py z2_lion z3_muon       measures these cases, prints them
    python tests/oracles/measure_optimizers.py --write z2_lion       and stores the values
    python tests/oracles/measure_optimizers.py --write --missing     measures what has no values yet

As `measure_engine.py`, but one launch runs all cases, each on an engine of its own; what an earlier one leaves is
subtracted. The GPU kernels are stood in for as in `dsplan smoke` (templates/smoke_optimizers.py). Muon orthogonalises
in fp32: half precision, which it takes on GPUs, multiplies so slowly on CPUs that a step takes minutes.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "templates"))

from measure_engine import PACKAGES, STEPS, build_model, free_port

GOLDEN = Path(__file__).parents[1] / "golden" / "optimizer_memory.json"


def main(arguments: list[str]) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    names = [name for name in arguments if not name.startswith("--")]
    runs = [run for run in golden["runs"] if run["name"] in names or not names]
    if "--missing" in arguments:
        runs = [run for run in runs if "peaks" not in run]
    measured = measure(golden["models"], runs)
    for name, values in measured.items():
        print(name, values)
    if "--write" in arguments:
        golden = json.loads(GOLDEN.read_text(encoding="utf-8"))  # it may have changed meanwhile
        for run in golden["runs"]:
            run.update(measured.get(run["name"], {}))
        golden["versions"] = {package: version(package) for package in (*PACKAGES, "bitsandbytes")}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


def measure(models: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Peaks of the fullest rank, and elements of every kind of optimizer state on all ranks, by case.

    What a launch that failed had measured before is kept; the rest is missing.
    """
    measured = {}
    for ranks in sorted({run["ranks"] for run in runs}):
        together = [run for run in runs if run["ranks"] == ranks]
        reports = launch({"models": models, "runs": together}, ranks=ranks)
        for run in together:
            own = [report[run["name"]] for report in reports if run["name"] in report]
            if len(own) < ranks:
                continue
            measured[run["name"]] = {
                "parameters": own[0]["parameters"],
                "peaks": {phase: max(one["peaks"][phase] for one in own) for phase in own[0]["peaks"]},
                "optimizer": own[0]["optimizer"],
                "states": {name: sum(one["states"].get(name, 0) for one in own) for name in sorted(own[0]["states"])},
            }
    return measured


def launch(task: dict[str, Any], *, ranks: int) -> list[dict[str, Any]]:
    """Run this file on so many ranks; what each of them reports."""
    from planner.launch.counting_allocator import build

    with tempfile.TemporaryDirectory() as folder:
        library, file = build(Path(folder)), Path(folder) / "task.json"
        file.write_text(json.dumps({**task, "folder": folder, "library": str(library)}), encoding="utf-8")
        env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        command = [
            "deepspeed",
            "--master_port",
            str(free_port()),
            "--num_accelerators",
            str(ranks),
            __file__,
            str(file),
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("rank*.json"))]


def worker(task_file: str) -> None:
    """One rank, all cases in turn."""
    import torch

    from planner.launch.counting_allocator import install, leave_out_staging

    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    counter = install(Path(task["library"]))
    leave_out_staging(counter)
    import deepspeed
    import torch._dynamo  # before zero.Init, which replaces torch.Tensor.__new__

    deepspeed.init_distributed()
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.muon import original_muon
    from smoke_optimizers import stand_in_for_gpu_kernels

    stand_in_for_gpu_kernels()
    type(get_accelerator()).is_fp16_supported = lambda _: True
    original_muon.ns_compute_dtype = lambda *_: torch.float32
    reports = {}
    for run in task["runs"]:
        gc.collect()
        reports[run["name"]] = one_case(task["models"][run["model"]], run, counter)
        rank = torch.distributed.get_rank()
        file = Path(task["folder"]) / f"rank{rank}.json"
        file.write_text(json.dumps(reports), encoding="utf-8")


def one_case(fields: dict[str, Any], run: dict[str, Any], counter: Any) -> dict[str, Any]:
    """Build the engine, train a few steps, and take it apart again."""
    import deepspeed
    import torch

    config = run["config"]
    torch.manual_seed(0)
    counter.take_peak_bytes()
    before = counter.alive_bytes()
    model = build_model(fields, run)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    peaks = {"load": counter.take_peak_bytes()}
    trained = [p for p in model.parameters() if p.requires_grad]
    own = script_optimizer(trained) if run.get("script_optimizer") else None
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, optimizer=own, config=config)
    peaks["init"] = counter.take_peak_bytes()
    for step in range(STEPS):
        for _ in range(config["gradient_accumulation_steps"]):
            micro_batch = config["train_micro_batch_size_per_gpu"]
            tokens = torch.randint(0, fields["vocab_size"], (micro_batch, run["seq"]))
            loss = engine(input_ids=tokens, labels=tokens).loss
            seen = {"forward": counter.take_peak_bytes()}
            engine.backward(loss)
            del loss
            seen["backward"] = counter.take_peak_bytes()
            engine.step()
            seen["step"] = counter.take_peak_bytes()
            if step == STEPS - 1:
                peaks = {**peaks, **{phase: max(peaks.get(phase, 0), size) for phase, size in seen.items()}}
    states: dict[str, int] = {}
    for state in engine.basic_optimizer.state.values():
        for name, value in state.items():
            if torch.is_tensor(value) and value.numel() > 1 and not name.startswith("qmap"):
                kind = f"{name} {str(value.dtype).removeprefix('torch.')}"
                states[kind] = states.get(kind, 0) + value.numel()
    optimizer = type(engine.basic_optimizer).__name__
    engine.destroy()
    return {
        "parameters": parameters,
        "peaks": {phase: size - before for phase, size in peaks.items()},
        "optimizer": optimizer,
        "states": states,
    }


def script_optimizer(trained: list[Any]) -> Any:
    """The optimizer that the Trainer's `optim="adamw_bnb_8bit"` builds."""
    from bitsandbytes.optim import AdamW

    return AdamW(trained, lr=1e-4, optim_bits=8)


if __name__ == "__main__":
    if os.environ.get("LOCAL_RANK") is not None:
        worker(next(a for a in sys.argv[1:] if not a.startswith("--")))
    else:
        main(sys.argv[1:])
