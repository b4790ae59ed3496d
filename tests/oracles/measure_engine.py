"""What the real DeepSpeed engine allocates on CPU, for the cases of `tests/golden/engine_memory.json`.

    python tests/oracles/measure_engine.py z2_ov z3     measures these cases again (all without names) and prints them
    python tests/oracles/measure_engine.py --write      and stores the values

Every rank runs the engine on a small model with a counting wrapper around torch's CPU allocator, installed before the
model exists, so every tensor byte on every thread is seen. Ranks report the peak of each phase; the fullest decides.
Limits: no CUDA context, communicator buffers, fragmentation or streams; offloaded tensors lie in the same memory as the
device's; gloo keeps a staging copy of a gather that NCCL does not keep.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "engine_memory.json"
STEPS = 3  # Adam's states exist from the second step, stage-3 prefetching from the third
ALLOCATOR = r"""
#include <mutex>
#include <unordered_map>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
static std::mutex lock;
static std::unordered_map<void*, int64_t> blocks;
static int64_t alive = 0, peak = 0;
static void drop(void* block) {
  { std::lock_guard<std::mutex> held(lock);
    auto at = blocks.find(block);
    if (at != blocks.end()) { alive -= at->second; blocks.erase(at); } }
  c10::free_cpu(block);
}
struct Counting final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    void* block = c10::alloc_cpu(size);
    if (block) {
      std::lock_guard<std::mutex> held(lock);
      blocks[block] = (int64_t)size; alive += (int64_t)size; if (alive > peak) peak = alive;
    }
    return {block, block, &drop, c10::Device(c10::DeviceType::CPU)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t size) const override { default_copy_data(to, from, size); }
};
extern "C" {
void install() { static Counting counting; c10::SetCPUAllocator(&counting, 255); }
int64_t take_peak() { std::lock_guard<std::mutex> held(lock); int64_t seen = peak; peak = alive; return seen; }
}
"""


def main(arguments: list[str]) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    names = [name for name in arguments if not name.startswith("--")]
    for run in golden["runs"]:
        if names and run["name"] not in names:
            continue
        run.update(measure(golden["model"], run))
        print(run["name"], run["peaks"], flush=True)
    if "--write" in arguments:
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


def measure(model: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Launch one case in fresh processes; the peaks of its fullest rank."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.json"
        task.write_text(json.dumps({"model": model, "run": run, "folder": folder}), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
        launch = ["deepspeed", "--master_port", str(port), "--num_accelerators", str(run["ranks"])]
        done = subprocess.run([*launch, __file__, str(task)], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("rank*.json")]
    phases = ranks[0]["peaks"]
    return {"parameters": ranks[0]["parameters"], "peaks": {p: max(r["peaks"][p] for r in ranks) for p in phases}}


def worker(task_file: str) -> None:
    """One rank."""
    import deepspeed
    import torch
    import torch._dynamo  # before zero.Init, which replaces torch.Tensor.__new__
    from transformers import AutoConfig, AutoModelForCausalLM

    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    run, config = task["run"], task["run"]["config"]
    deepspeed.init_distributed()
    counter = counting_allocator()
    torch.manual_seed(0)
    fields = dict(task["model"])
    shape = AutoConfig.for_model(fields.pop("model_type"), **fields)
    shape.use_cache = False
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = next((dtypes[key] for key in dtypes if key in config), torch.float32)
    torch.set_default_dtype(dtype)
    counter.take_peak()
    if config["zero_optimization"]["stage"] == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = AutoModelForCausalLM.from_config(shape)
    else:
        model = AutoModelForCausalLM.from_config(shape)
    torch.set_default_dtype(torch.float32)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    if run["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    peaks = {"load": counter.take_peak()}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    peaks["init"] = counter.take_peak()
    for step in range(STEPS):
        last = step == STEPS - 1
        for _ in range(config["gradient_accumulation_steps"]):
            tokens = torch.randint(0, shape.vocab_size, (config["train_micro_batch_size_per_gpu"], run["seq"]))
            loss = engine(input_ids=tokens, labels=tokens).loss
            seen = {"forward": counter.take_peak()}
            engine.backward(loss)
            del loss
            seen["backward"] = counter.take_peak()
            engine.step()
            seen["step"] = counter.take_peak()
            if last:
                peaks = {**peaks, **{phase: max(peaks.get(phase, 0), size) for phase, size in seen.items()}}
    rank = torch.distributed.get_rank()
    result = {"parameters": parameters, "peaks": peaks}
    (Path(task["folder"]) / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")


def counting_allocator() -> Any:
    """Compile and install the wrapper; its C functions."""
    import torch

    folder = tempfile.mkdtemp()
    source, library = Path(folder) / "counting.cpp", Path(folder) / "counting.so"
    source.write_text(ALLOCATOR, encoding="utf-8")
    home = Path(torch.__file__).parent
    compile_flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{home / 'include'}"]
    link_flags = [f"-L{home / 'lib'}", "-lc10", "-o", str(library)]
    subprocess.run(["g++", *compile_flags, str(source), *link_flags], check=True)
    functions = ctypes.CDLL(str(library))
    functions.take_peak.restype = ctypes.c_int64
    functions.install()
    return functions


if __name__ == "__main__":
    if os.environ.get("LOCAL_RANK") is not None:
        worker(next(a for a in sys.argv[1:] if not a.startswith("--")))
    else:
        main(sys.argv[1:])
