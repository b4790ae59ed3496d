"""The model and the data of this plan, for the `train.py` beside this file.

The model, sequence length, method, precision, attention and loss come from plan.json; the weights and the text from
the command line, or random ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)

HERE = Path(__file__).resolve().parent
DTYPES = {"bf16": torch.bfloat16, "pure-bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
SYNTHETIC_STEPS = 20
log = logging.getLogger("train")


def read_json(name: str) -> dict[str, Any]:
    """A file of the plan's folder."""
    document: dict[str, Any] = json.loads((HERE / name).read_text("utf-8"))
    return document


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """What is asked on the command line; everything else is in the files beside this one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or Hugging Face id of the weights; default: random weights")
    parser.add_argument("--data", type=Path, help='text, or JSONL with a "text" field; default: synthetic tokens')
    parser.add_argument("--tokenizer", help="default: that of --model, else of the plan's model")
    parser.add_argument("--epochs", type=float, help="passes over --data")
    parser.add_argument("--max-steps", type=int, default=-1, help="optimizer steps, instead of --epochs")
    parser.add_argument("--output-dir", help="checkpoints, final model, tokenized data")
    parser.add_argument("--save-steps", type=int, default=0, help="write a checkpoint every N optimizer steps")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --output-dir")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # some launchers pass it
    return parser


def start_logging(rank: int) -> None:
    """The first rank speaks, the others only when something is wrong."""
    logging.basicConfig(level=logging.WARNING if rank == 0 else logging.ERROR, format="%(message)s")


def build_model(plan: dict[str, Any], options: argparse.Namespace) -> Any:
    """The plan's architecture in the plan's dtype, with the weights of --model or random ones, and its adapters."""
    dtype, method = DTYPES[plan["plans"][0]["precision"]], plan["request"]["method"]
    settings: dict[str, Any] = {"dtype": dtype, "attn_implementation": ATTENTION[plan["request"]["attention"]]}
    if method == "qlora":
        settings["quantization_config"] = four_bits(dtype)
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, **settings)
    else:
        log.warning("no --model: random weights of the architecture of %s", plan["model"]["name"])
        fields = {key: value for key, value in plan["model"]["config"].items() if key != "model_type"}
        config = AutoConfig.for_model(plan["model"]["model_type"], **fields)
        torch.manual_seed(42)  # the same weights on every rank
        build = random_four_bit_model if method == "qlora" else AutoModelForCausalLM.from_config
        model = build(config, **settings)
    model.config.use_cache = False
    return model if method == "full" else with_adapters(model, plan["request"])


def four_bits(dtype: torch.dtype) -> Any:
    """nf4 with double quantisation, packed into tensors of the run's dtype: ZeRO-3 divides no others."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=dtype,
    )


def random_four_bit_model(config: Any, *, dtype: torch.dtype, **settings: Any) -> PreTrainedModel:
    """Random weights, quantised one by one as those of a file are: the 16-bit model never exists whole."""
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):  # the class itself, because from_config would divide the model at ZeRO-3
        shapes = model_class(config)
    pool = torch.randn(max(sum(weight.shape) for weight in shapes.parameters())).mul_(0.02).to(dtype)
    ones = torch.ones_like(pool)
    weights = {  # overlapping views of a few random numbers
        name: (pool if weight.dim() > 1 or name.endswith("bias") else ones).as_strided(weight.shape, [1] * weight.dim())
        for name, weight in shapes.named_parameters()
    }
    model = model_class.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **settings)
    for weight in model.parameters():
        if not hasattr(weight, "quant_state"):  # still a view where loading moved nothing
            weight.data = weight.data.clone(memory_format=torch.contiguous_format)
    return model


def with_adapters(model: PreTrainedModel, request: dict[str, Any]) -> Any:
    """LoRA adapters on the plan's targets, in the model's dtype; all other weights frozen."""
    from peft import LoraConfig, get_peft_model

    rank, targets = request["lora_rank"], request["lora_targets"]
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    # peft's default would leave fp32 adapters among 16-bit weights at ZeRO-3, where the engine casts nothing.
    return get_peft_model(model, config, autocast_adapter_dtype=False)


class Blocks(Dataset):
    """Blocks of tokens by number; a number gives the same block on every rank, as tensor parallelism demands."""

    def __init__(self, count: int, block: Callable[[int], torch.Tensor]) -> None:
        self.count, self.block = count, block

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = self.block(number)
        return {"input_ids": tokens, "labels": tokens}


def random_block(vocab: int, seq_len: int, number: int) -> torch.Tensor:
    return torch.randint(vocab, (seq_len,), generator=torch.Generator().manual_seed(number))


def stored_block(file: Path, seq_len: int, number: int) -> torch.Tensor:
    return torch.from_numpy(np.load(file, mmap_mode="r")[number * seq_len :][:seq_len].astype(np.int64))


def tokenize(data: Path, tokenizer_name: str, target: Path) -> None:
    """All tokens of a text or JSONL file in one array; each JSONL document ends with the end-of-text token."""
    tokenizer, jsonl = AutoTokenizer.from_pretrained(tokenizer_name), data.suffix in (".jsonl", ".json")
    end = [tokenizer.eos_token_id] if jsonl and tokenizer.eos_token_id is not None else []
    pieces = [np.zeros(0, dtype=np.int32)]
    with data.open(encoding="utf-8") as lines:
        texts = (json.loads(line)["text"] if jsonl else line for line in lines if line.strip())
        while batch := list(islice(texts, 1000)):
            pieces += [np.array(ids + end, np.int32) for ids in tokenizer(batch, add_special_tokens=False)["input_ids"]]
    unfinished = target.with_suffix(f".{os.getpid()}.npy")
    np.save(unfinished, np.concatenate(pieces))
    unfinished.replace(target)


def build_dataset(
    plan: dict[str, Any],
    options: argparse.Namespace,
    *,
    vocab: int,
    folder: str,
    synthetic_blocks: int,
    one_per_node_first: AbstractContextManager[Any],
) -> Dataset:
    """Blocks of the plan's sequence length from --data, or that many synthetic ones; tokens are kept in the folder."""
    seq_len = plan["request"]["seq_len"]
    if options.data is None:
        log.warning("no --data: synthetic tokens")
        return Blocks(synthetic_blocks, partial(random_block, vocab, seq_len))
    tokenizer = options.tokenizer or options.model or plan["model"]["hub_id"]
    if not tokenizer:
        raise SystemExit("--data needs --tokenizer or --model")
    identity = f"{options.data.resolve()} {options.data.stat().st_size} {options.data.stat().st_mtime_ns} {tokenizer}"
    target = Path(folder) / f"tokens-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    with one_per_node_first:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            tokenize(options.data, tokenizer, target)
    tokens = len(np.load(target, mmap_mode="r"))
    if tokens < seq_len:
        raise SystemExit(f"--data holds {tokens} tokens, less than one block of {seq_len}")
    return Blocks(tokens // seq_len, partial(stored_block, target, seq_len))


def log_settings(engine: Any, ranks: int, *, checkpointing: bool) -> None:
    """Says at the start what the engine really runs with."""
    tp, dp = engine.mp_world_size, ranks // engine.mp_world_size
    micro, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    log.warning(
        f"in force: ZeRO-{engine.zero_optimization_stage()}, dp {dp} x tp {tp}, micro-batch {micro} x accumulation "
        f"{accumulation} x dp {dp} = {micro * accumulation * dp} samples a step, activation checkpointing "
        f"{'on' if checkpointing else 'off'}, {type(engine.basic_optimizer).__name__}"
    )
