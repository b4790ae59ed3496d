"""train.py does what its help says: packs a user's file, trains from weights, saves a model that loads anywhere."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

import planner
from planner.launch.process import run
from planner.launch.shrink import shrink

pytestmark = [pytest.mark.deepspeed, pytest.mark.accelerate, pytest.mark.transformers, pytest.mark.slow]
# Accelerate picks no backend without a GPU, and Transformers wants one for bf16; the script itself is unchanged.
ON_CPU = """
import os, runpy, sys
import torch, torch._dynamo, accelerate.state, transformers.training_args
original = accelerate.state.PartialState._prepare_backend
def with_gloo(self, *arguments, **options):
    backend, kind = original(self, *arguments, **options)
    return backend or "gloo", kind
accelerate.state.PartialState._prepare_backend = with_gloo
transformers.training_args.is_torch_bf16_gpu_available = lambda: True
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
DOCUMENTS = [
    f"document {number} says that the engine divides the states between {number + 2} ranks" for number in range(60)
]


@pytest.fixture(scope="module", autouse=True)
def _engine():
    for package in ("torch", "deepspeed", "accelerate", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def write_tiny_plan(folder: Path, *, seq_len: int, **fields) -> Path:
    """A rendered plan whose plan.json describes a tiny model and short sequences."""
    folder.mkdir()
    pinned = {"offload": "none", "micro_batch": 1, "checkpointing": "full", "gpus": "4xA100-80G", **fields}
    for name, text in planner.plan(model="qwen2.5-0.5b", **pinned).files().items():
        (folder / name).write_text(text, encoding="utf-8")
    document = json.loads((folder / "plan.json").read_text("utf-8"))
    document["model"]["config"] = shrink(document["model"]["config"], tp=fields["tp"])
    document["request"]["seq_len"] = seq_len
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer made here: nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<end>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


# What launch.sh exports where `accelerate launch` does not start a script with Accelerator.
TOLD = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds_config.json",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
}


def train(folder: Path, *arguments: str, ranks: int, **told: str) -> str:
    """Run the folder's train.py on CPU ranks; returns what it said."""
    (folder / "on_cpu.py").write_text(ON_CPU, encoding="utf-8")
    lines: list[str] = []
    finished = run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "on_cpu.py",
         "train.py", *arguments],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
             "CUDA_VISIBLE_DEVICES": "", **told},
        cwd=folder,
        timeout_s=600,
        on_line=lines.append,
    )  # fmt: skip
    said = "\n".join(lines)
    assert finished.returncode == 0, said
    return said


@pytest.mark.parametrize("integration", ["trainer", "accelerate", "deepspeed"])
def test_a_jsonl_file_is_packed_trained_on_and_the_model_saved_whole(tmp_path, integration):
    import numpy as np
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    data = tmp_path / "my data.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS), encoding="utf-8")
    told = TOLD if integration == "accelerate" else {}
    first = write_tiny_plan(tmp_path / "first", seq_len=32, zero=3, tp=2, integration=integration)
    options = ["--data", str(data), "--tokenizer", str(tokenizer), "--max-steps", "2"]
    at_stage_three = {name: value.replace("false", "true") for name, value in told.items()}
    said = train(first, *options, ranks=4, **at_stage_three)
    assert "in force: ZeRO-3, dp 2 x tp 2, micro-batch 1 x accumulation 1 x dp 2 = 2 samples a step" in said

    stored = next((first / "output").glob("tokens-*.npy"))
    reader = AutoTokenizer.from_pretrained(tokenizer)
    documents = reader.decode(np.load(stored).tolist()).split("<end>")
    assert [text for text in documents if text] == DOCUMENTS

    model = AutoModelForCausalLM.from_pretrained(first / "output")
    config = json.loads((first / "plan.json").read_text("utf-8"))["model"]["config"]
    assert model.config.hidden_size == config["hidden_size"]
    assert sorted({str(p.dtype) for p in model.parameters()}) == ["torch.bfloat16"]

    text = tmp_path / "plain.txt"
    text.write_text("\n".join(DOCUMENTS), encoding="utf-8")
    second = write_tiny_plan(tmp_path / "second", seq_len=32, zero=2, tp=1, integration=integration)
    options = ["--model", str(first / "output"), "--data", str(text), "--tokenizer", str(tokenizer)]
    said = train(second, *options, "--max-steps", "2", "--save-steps", "1", ranks=2, **told)
    assert "random weights" not in said
    assert (second / "output" / "checkpoint-2").is_dir()
    said = train(second, *options, "--max-steps", "3", "--save-steps", "1", "--resume", ranks=2, **told)
    assert (second / "output" / "checkpoint-3").is_dir()
    AutoModelForCausalLM.from_pretrained(second / "output")


def test_a_script_with_accelerator_refuses_to_train_without_the_plan(tmp_path):
    folder = write_tiny_plan(tmp_path / "plan", seq_len=32, zero=2, tp=1, integration="accelerate")
    (folder / "on_cpu.py").write_text(ON_CPU, encoding="utf-8")
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "on_cpu.py"]
    finished = run([*command, "train.py"], env=environment, cwd=folder, timeout_s=300)
    assert finished.returncode != 0
    assert any("no DeepSpeed file: start this script with launch.sh" in line for line in finished.tail)
