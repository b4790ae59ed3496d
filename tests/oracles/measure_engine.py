"""What the real DeepSpeed engine allocates on CPU, for the cases of `tests/golden/engine_memory.json`.

    python tests/oracles/measure_engine.py z2_ov z3             measures these cases (all without names), prints them
    python tests/oracles/measure_engine.py --write z2_ov        and stores the values
    python tests/oracles/measure_engine.py --write --missing    measures what has no values yet

Every rank runs the engine on a small model with the counting allocator of `dsplan smoke`, installed before the model
exists, so every tensor byte on every thread is seen. Ranks report the peak of each phase; the fullest decides.
Limits: no CUDA context, communicator buffers, fragmentation or streams; offloaded tensors lie in the same memory as the
device's. What gloo stages for a collective is left out, because NCCL works in place.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_memory.json"
STEPS = 3  # Adam's states exist from the second step, stage-3 prefetching from the third
CASE_LIMIT_S = 400
TRIES = 2  # under load a case has hung now and then; why is not known, its stack is printed
SETTLE_S = 0.1
SETTLE_ROUNDS = 4  # at least as many as gloo has threads
PACKAGES = ("deepspeed", "torch", "transformers", "peft")


def main(arguments: list[str]) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    names = [name for name in arguments if not name.startswith("--")]
    wanted = [run for run in golden["runs"] if not names or run["name"] in names]
    if "--missing" in arguments:
        wanted = [run for run in wanted if "peaks" not in run]
    for ranks in sorted({run["ranks"] for run in wanted}):
        for name, values in measure(golden["models"], [run for run in wanted if run["ranks"] == ranks]).items():
            print(name, values, flush=True)
            if "--write" in arguments:
                store(name, values)


def store(name: str, values: dict[str, Any]) -> None:
    """Put one run's values into the file, which may have changed meanwhile."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    golden["versions"] = {package: version(package) for package in PACKAGES}
    next(run for run in golden["runs"] if run["name"] == name).update(values)
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


def measure(models: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Launch cases with the same number of ranks; by name, the peaks of the fullest rank. Failed cases say why on
    stderr, are tried once more, and are missing if they fail again."""
    found: dict[str, dict[str, Any]] = {}
    for _ in range(TRIES):
        missing = [run for run in runs if run["name"] not in found]
        if missing:
            found |= launch(models, missing)
    return found


def launch(models: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One launch of all these cases."""
    from planner.launch.counting_allocator import build

    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        cases = [{"run": run, "model": models[run["model"]]} for run in runs]
        task = Path(folder) / "task.json"
        task.write_text(json.dumps({"cases": cases, "folder": folder, "library": str(library)}), encoding="utf-8")
        env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env["PYTHONWARNINGS"] = "ignore"  # or they hide why a case failed
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        command = ["deepspeed", "--master_port", str(free_port()), "--num_accelerators", str(runs[0]["ranks"])]
        done = subprocess.run([*command, __file__, str(task)], env=env, capture_output=True, text=True, check=False)
        found = {}
        for run in runs:
            results = Path(folder).glob(f"{run['name']}.*.json")
            ranks = [json.loads(path.read_text(encoding="utf-8")) for path in results]
            if len(ranks) == run["ranks"]:
                peaks = {phase: max(rank["peaks"][phase] for rank in ranks) for phase in ranks[0]["peaks"]}
                found[run["name"]] = {"parameters": ranks[0]["parameters"], "peaks": peaks}
    if len(found) < len(runs):
        print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
    return found


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def worker(task_file: str) -> None:
    """One rank: the heavy imports once, then a fresh process for every case."""
    import deepspeed.comm.torch
    import torch._dynamo  # noqa: F401 - before zero.Init, which replaces torch.Tensor.__new__
    import transformers  # noqa: F401

    # Inference's all-reduce through shared memory: training never calls it, and ranks wait in it for one that died.
    deepspeed.comm.torch.build_shm_op = lambda: None
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    for case in task["cases"]:
        process = os.fork()
        if process == 0:
            faulthandler.dump_traceback_later(CASE_LIMIT_S - 10)
            signal.alarm(CASE_LIMIT_S)
            run_case(case["model"], case["run"], Path(task["folder"]), Path(task["library"]))
            os._exit(0)
        os.waitpid(process, 0)


def run_case(fields: dict[str, Any], run: dict[str, Any], folder: Path, library: Path) -> None:
    """Train three steps; write the peaks of this rank."""
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator

    from planner.launch.counting_allocator import install, leave_out_staging

    counter = install(library)
    leave_out_staging(counter)
    # Ranks meet in a file: a port chosen for a later case may be taken by then, and the other rank waits for ever.
    meeting, rank, ranks = folder / f"{run['name']}.meeting", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    deepspeed.init_distributed(init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    if "fp16" in run["config"]:  # torch computes it on every CPU, if slowly; DeepSpeed asks for instructions of its own
        get_accelerator().is_fp16_supported = lambda: True
    torch.manual_seed(0)
    counter.take_peak_bytes()
    model = build_model(fields, run)
    settle()
    peaks = {"load": counter.take_peak_bytes()}
    draw_weights(model)
    model = with_adapters(model, run)  # which gathers the base weights at stage 3: no phase of the plan
    settle()
    counter.take_peak_bytes()
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    config = as_the_trainer_fills_it(run["config"], model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    peaks["init"] = counter.take_peak_bytes()
    accumulation = config["gradient_accumulation_steps"]
    for step in range(STEPS):
        for micro_batch in range(accumulation):
            tokens = torch.randint(0, fields["vocab_size"], (config["train_micro_batch_size_per_gpu"], run["seq"]))
            counter.take_peak_bytes()
            loss = engine(input_ids=tokens, labels=tokens).loss
            seen = {"forward": counter.take_peak_bytes()}
            engine.backward(loss)
            del loss
            settle()
            seen["backward"] = counter.take_peak_bytes()
            engine.step()
            if micro_batch == accumulation - 1:  # before, a step is none
                seen["step"] = counter.take_peak_bytes()
            if step == STEPS - 1:
                peaks = {**peaks, **{phase: max(peaks.get(phase, 0), size) for phase, size in seen.items()}}
    result = json.dumps({"parameters": parameters, "peaks": peaks})
    (folder / f"{run['name']}.{torch.distributed.get_rank()}.json").write_text(result, encoding="utf-8")


def settle() -> None:
    """Gloo's threads hold the tensor of their last collective until the next one: give each of them another."""
    import torch

    for _ in range(SETTLE_ROUNDS):
        torch.distributed.barrier()
    time.sleep(SETTLE_S)


def build_model(fields: dict[str, Any], run: dict[str, Any]) -> Any:
    """The model as the Trainer loads it, under zero.Init at stage 3."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = run["config"]
    fields = dict(fields)
    shape = AutoConfig.for_model(fields.pop("model_type"), **fields)
    shape.use_cache = False
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    torch.set_default_dtype(next((dtypes[key] for key in dtypes if key in config), torch.float32))
    if config["zero_optimization"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = AutoModelForCausalLM.from_config(shape)
    else:
        model = AutoModelForCausalLM.from_config(shape)
    torch.set_default_dtype(torch.float32)
    if run["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def with_adapters(model: Any, run: dict[str, Any]) -> Any:
    """The run's adapters beside frozen weights, in the model's own dtype as in the plan's train.py."""
    if "adapter" not in run:
        return model
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=run["adapter"]["rank"], target_modules=run["adapter"]["targets"], task_type="CAUSAL_LM")
    model = get_peft_model(model, adapter, autocast_adapter_dtype=False)
    if run["checkpointing"]:
        model.enable_input_require_grads()
    return model


def draw_weights(model: Any) -> None:
    """Numbers for matrices that zero.Init leaves as they lay in memory, as experts and routers: training would stop at
    the first NaN."""
    import deepspeed
    import torch

    for parameter in model.parameters():
        if len(getattr(parameter, "ds_shape", ())) > 1:
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                torch.nn.init.normal_(parameter, std=0.02)


def as_the_trainer_fills_it(config: dict[str, Any], model: Any) -> dict[str, Any]:
    """The "auto" sizes as transformers resolves them; a config without is left alone."""
    if "auto" not in json.dumps(config):
        return config
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    filled = HfTrainerDeepSpeedConfig(config)
    filled.trainer_config_finalize(SimpleNamespace(get_warmup_steps=lambda steps: 0), model, 1)
    resolved: dict[str, Any] = filled.config
    return resolved


if __name__ == "__main__":
    if os.environ.get("LOCAL_RANK") is not None:
        worker(next(a for a in sys.argv[1:] if not a.startswith("--")))
    else:
        main(sys.argv[1:])
