"""What a rank's process and its loading take on this machine: the constants behind `host/process` and `load/copy`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.memory import host
from planner.units import MIB

pytestmark = pytest.mark.slow

ANONYMOUS = """
def anonymous():
    with open('/proc/self/smaps_rollup') as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('Anonymous'))
"""


def run(program: str, *arguments: str) -> dict[str, int]:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("the kernel does not tell memory by kind")
    command = [sys.executable, "-c", ANONYMOUS + program, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
    )
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_rank_without_cuda_is_a_small_part_of_what_is_counted() -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    found = run(
        "import json, torch, transformers, accelerate, deepspeed\n"
        "from transformers import AutoModelForCausalLM, Trainer\n"
        "print(json.dumps({'heap': anonymous()}))\n"
    )
    assert host.HEAP_BYTES * 0.7 <= found["heap"] <= host.HEAP_BYTES * 1.3
    assert found["heap"] < host.process_bytes() / 3  # the rest is CUDA's


LOADING = """
import json, sys, torch
from transformers import AutoModelForCausalLM
before = anonymous()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
print(json.dumps({'grown': anonymous() - before, 'model': sum(p.numel() for p in model.parameters())}))
"""


@pytest.mark.parametrize(("stored", "copies"), [("bfloat16", 0), ("float32", 1)])
def test_only_a_checkpoint_in_another_dtype_is_copied_into_memory(stored: str, copies: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=8, vocab_size=32000
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, stored))
    model.save_pretrained(tmp_path)
    found = run(LOADING, str(tmp_path))
    expected = copies * host.load_copy_bytes(found["model"], 2)
    assert abs(found["grown"] - expected) < 150 * MIB
    assert host.load_copy_bytes(found["model"], 2) > 250 * MIB
