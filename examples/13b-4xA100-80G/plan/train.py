#!/usr/bin/env python3
"""Trains the model of `plan.json` with the DeepSpeed settings of `ds_config.json`, both beside this file.

    ./launch.sh                                   random weights, synthetic tokens: shows memory and speed
    ./launch.sh --model PATH_OR_ID --data FILE    real weights on your text or JSONL file

Each value has one home: the model, sequence length, method, precision, attention, loss and checkpointing come from
plan.json; micro-batch, accumulation, clipping and optimizer come from ds_config.json, where the engine reads them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
from collections.abc import Callable
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
    Trainer,
    TrainerCallback,
)
from transformers import TrainingArguments as Arguments

HERE = Path(__file__).resolve().parent
DTYPES = {"bf16": torch.bfloat16, "pure-bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
SYNTHETIC_STEPS = 20
log = logging.getLogger("train")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or Hugging Face id of the weights; default: random weights")
    parser.add_argument("--data", type=Path, help='text, or JSONL with a "text" field; default: synthetic tokens')
    parser.add_argument("--tokenizer", help="default: that of --model, else of the plan's model")
    parser.add_argument("--epochs", type=float, default=1.0, help="passes over --data")
    parser.add_argument("--max-steps", type=int, default=-1, help="optimizer steps, instead of --epochs")
    parser.add_argument("--output-dir", default="output", help="checkpoints, final model, tokenized data")
    parser.add_argument("--save-steps", type=int, default=0, help="write a checkpoint every N optimizer steps")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --output-dir")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # some launchers pass it
    return parser.parse_args(argv)


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan document and the DeepSpeed configuration."""
    plan, engine = (json.loads((folder / name).read_text("utf-8")) for name in ("plan.json", "ds_config.json"))
    return plan, engine


def training_arguments(plan: dict[str, Any], engine: dict[str, Any], options: argparse.Namespace) -> Arguments:
    """The Trainer's arguments. Building them switches zero.Init on, so they come before the model."""
    chosen = plan["plans"][0]
    head_and_loss_only = dict.fromkeys(("cross_entropy", "rms_norm", "rope", "swiglu", "geglu", "layer_norm"), False)
    return Arguments(
        output_dir=options.output_dir,
        deepspeed=str(HERE / "ds_config.json"),
        per_device_train_batch_size=engine["train_micro_batch_size_per_gpu"],
        gradient_accumulation_steps=engine["gradient_accumulation_steps"],
        max_grad_norm=engine["gradient_clipping"],
        **optimizer_arguments(plan, engine),
        lr_scheduler_type="linear",
        warmup_steps=0.03,  # below 1: a share of all steps
        bf16=chosen["precision"] in ("bf16", "pure-bf16"),
        fp16=chosen["precision"] == "fp16",
        activation_checkpointing=chosen["checkpointing"] == "full",
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_liger_kernel=plan["request"]["loss"] == "fused",  # head and loss in chunks: the logits are never whole
        liger_kernel_config={"fused_linear_cross_entropy": True, **head_and_loss_only},
        num_train_epochs=options.epochs,
        max_steps=options.max_steps if options.data or options.max_steps > 0 else SYNTHETIC_STEPS,
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        save_total_limit=2,
        logging_steps=10 if options.data else 1,
        dataloader_num_workers=2,
        dataloader_pin_memory=True,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
    )


def optimizer_arguments(plan: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's values: those of ds_config.json, which the Trainer compares with its own.

    DeepSpeed has no 8-bit AdamW; the Trainer builds that one itself, with AdamW's values.
    """
    if "optimizer" not in engine:
        rate = 1e-5 if plan["request"]["method"] == "full" else 2e-4
        return {"optim": "adamw_bnb_8bit", "learning_rate": rate, "adam_beta2": 0.95, "weight_decay": 0.1}
    params = engine["optimizer"]["params"]
    values = {"learning_rate": params["lr"], "weight_decay": params["weight_decay"]}
    if "betas" in params:
        values |= {"adam_beta1": params["betas"][0], "adam_beta2": params["betas"][1]}
    return values | ({"adam_epsilon": params["eps"]} if "eps" in params else {})


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


def build_dataset(plan: dict[str, Any], arguments: Arguments, options: argparse.Namespace, vocab: int) -> Dataset:
    """Blocks of the plan's sequence length from --data, or synthetic ones."""
    seq_len = plan["request"]["seq_len"]
    if options.data is None:
        log.warning("no --data: synthetic tokens")
        per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        return Blocks(per_step * arguments.max_steps, partial(random_block, vocab, seq_len))
    tokenizer = options.tokenizer or options.model or plan["model"]["hub_id"]
    if not tokenizer:
        raise SystemExit("--data needs --tokenizer or --model")
    identity = f"{options.data.resolve()} {options.data.stat().st_size} {options.data.stat().st_mtime_ns} {tokenizer}"
    target = Path(options.output_dir) / f"tokens-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    with arguments.main_process_first(local=True, desc="tokenizing"):  # one process of each node
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            tokenize(options.data, tokenizer, target)
    tokens = len(np.load(target, mmap_mode="r"))
    if tokens < seq_len:
        raise SystemExit(f"--data holds {tokens} tokens, less than one block of {seq_len}")
    return Blocks(tokens // seq_len, partial(stored_block, target, seq_len))


class LogSettings(TrainerCallback):
    """Says at the start what the engine really runs with."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, arguments: Arguments, *_: Any, **__: Any) -> None:
        engine = self.trainer.model_wrapped
        tp, dp = engine.mp_world_size, arguments.world_size // engine.mp_world_size
        micro, accumulation = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
        log.warning(
            f"in force: ZeRO-{engine.zero_optimization_stage()}, dp {dp} x tp {tp}, micro-batch {micro} x accumulation "
            f"{accumulation} x dp {dp} = {micro * accumulation * dp} samples a step, activation checkpointing "
            f"{'on' if arguments.activation_checkpointing else 'off'}, {type(engine.basic_optimizer).__name__}"
        )


def build_trainer(options: argparse.Namespace) -> Trainer:
    plan, engine = read_files(HERE)
    arguments = training_arguments(plan, engine, options)
    logging.basicConfig(level=logging.WARNING if arguments.process_index == 0 else logging.ERROR, format="%(message)s")
    model = build_model(plan, options)
    dataset = build_dataset(plan, arguments, options, model.config.get_text_config().vocab_size)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.add_callback(LogSettings(trainer))
    return trainer


def main() -> None:
    options = parse_arguments()
    trainer = build_trainer(options)
    trainer.train(resume_from_checkpoint=options.resume)
    if options.model or options.data:
        # Whole also at ZeRO-3 and with tensor parallelism, because ds_config.json sets
        # stage3_gather_16bit_weights_on_model_save; without it this would write a sharded checkpoint.
        trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
