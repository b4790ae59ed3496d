#!/usr/bin/env python3
"""Train the model of `plan.json` with the DeepSpeed settings of `ds_config.json`, both beside this file.

    ./launch.sh                                        synthetic tokens, random weights: measures memory and speed
    ./launch.sh --model PATH_OR_ID --data FILE         continues from real weights on your text or JSONL file

Each value has one home: the model, sequence length, precision, attention, loss and checkpointing come from
plan.json; micro-batch, accumulation, clipping and optimizer come from ds_config.json, where the engine reads them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

HERE = Path(__file__).resolve().parent
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
SYNTHETIC_STEPS = 20
log = logging.getLogger("train")


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help='text, or JSONL with a "text" field; default: synthetic tokens')
    parser.add_argument("--model", help="folder or Hugging Face id of the weights; default: random weights")
    parser.add_argument("--tokenizer", help="default: that of --model, else the plan's")
    parser.add_argument("--max-steps", type=int, default=-1, help="optimizer steps; default: the epochs of --data")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--warmup-steps", type=float, default=0.03, help="steps, or a share of all steps if below 1")
    parser.add_argument("--output-dir", default="output")
    parser.add_argument("--save-steps", type=int, default=0, help="write a checkpoint every N steps; 0: none")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --output-dir")
    parser.add_argument("--save", action="store_true", help="save the final model even without --model and --data")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the deepspeed launcher")
    return parser.parse_args(argv)


def read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the DeepSpeed configuration beside this file."""
    plan, engine = (json.loads((folder / name).read_text("utf-8")) for name in ("plan.json", "ds_config.json"))
    return plan, engine


def training_arguments(plan: dict[str, Any], engine: dict[str, Any], options: argparse.Namespace) -> TrainingArguments:
    """The Trainer's arguments; building them switches zero.Init on, so they come before the model."""
    chosen, optimizer = plan["plans"][0], engine["optimizer"]["params"]
    return TrainingArguments(
        output_dir=options.output_dir,
        deepspeed=str(HERE / "ds_config.json"),
        per_device_train_batch_size=engine["train_micro_batch_size_per_gpu"],
        gradient_accumulation_steps=engine["gradient_accumulation_steps"],
        max_grad_norm=engine["gradient_clipping"],
        learning_rate=optimizer["lr"],
        adam_beta1=optimizer["betas"][0],
        adam_beta2=optimizer["betas"][1],
        adam_epsilon=optimizer["eps"],
        weight_decay=optimizer["weight_decay"],
        lr_scheduler_type="linear",
        warmup_steps=options.warmup_steps,
        bf16=chosen["precision"] == "bf16",
        fp16=chosen["precision"] == "fp16",
        activation_checkpointing=chosen["checkpointing"] == "full",
        activation_checkpointing_kwargs={"use_reentrant": False},
        # "fused": the head and the cross-entropy in chunks, so that the logits are never whole
        use_liger_kernel=plan["request"]["loss"] == "fused",
        liger_kernel_config={
            "fused_linear_cross_entropy": True,
            "cross_entropy": False,
            "rms_norm": False,
            "rope": False,
            "swiglu": False,
        },
        max_steps=options.max_steps if options.data or options.max_steps > 0 else SYNTHETIC_STEPS,
        num_train_epochs=options.epochs,
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 500,
        save_total_limit=2,
        logging_steps=1 if options.data is None else 10,
        dataloader_num_workers=2,
        dataloader_pin_memory=True,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        seed=options.seed,
        report_to="none",
        disable_tqdm=True,
    )


def build_model(plan: dict[str, Any], options: argparse.Namespace) -> PreTrainedModel:
    """The plan's architecture in the plan's dtype, with the weights of --model or random ones."""
    settings = {
        "dtype": DTYPES[plan["plans"][0]["precision"]],
        "attn_implementation": ATTENTION[plan["request"]["attention"]],
    }
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, **settings)
    else:
        fields = {key: value for key, value in plan["model"]["config"].items() if key != "model_type"}
        config = AutoConfig.for_model(plan["model"]["model_type"], **fields)
        torch.manual_seed(options.seed)  # the same random weights on every rank
        model = AutoModelForCausalLM.from_config(config, **settings)
    model.config.use_cache = False
    return model


class SyntheticTokens(Dataset):
    """Random token blocks; block i is the same on every rank, as tensor parallelism demands."""

    def __init__(self, vocab: int, seq_len: int, blocks: int, seed: int) -> None:
        self.vocab, self.seq_len, self.blocks, self.seed = vocab, seq_len, blocks, seed

    def __len__(self) -> int:
        return self.blocks

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        tokens = torch.randint(self.vocab, (self.seq_len,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class PackedTokens(Dataset):
    """A file of tokens, cut into blocks of `seq_len`; read from disk as needed."""

    def __init__(self, path: Path, seq_len: int) -> None:
        self.tokens, self.seq_len = np.load(path, mmap_mode="r"), seq_len
        if len(self) == 0:
            raise SystemExit(f"the data holds {len(self.tokens)} tokens: fewer than one block of {seq_len}")

    def __len__(self) -> int:
        return len(self.tokens) // self.seq_len

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = self.tokens[index * self.seq_len : (index + 1) * self.seq_len]
        tokens = torch.from_numpy(block.astype(np.int64))
        return {"input_ids": tokens, "labels": tokens}


def pack(data: Path, tokenizer_name: str, cache: Path) -> None:
    """Write the tokens of a text or JSONL file to `cache`; each JSONL document ends with the end-of-text token."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
    jsonl = data.suffix in (".jsonl", ".json")
    end = [tokenizer.eos_token_id] if jsonl and tokenizer.eos_token_id is not None else []
    pieces = []
    with data.open(encoding="utf-8") as lines:
        texts = (json.loads(line)["text"] if jsonl else line for line in lines if line.strip())
        while batch := list(islice(texts, 1000)):
            encoded = tokenizer(batch, add_special_tokens=False)["input_ids"]
            pieces.append(np.concatenate([np.asarray(ids + end, dtype=np.int32) for ids in encoded]))
    unfinished = cache.with_suffix(f".{os.getpid()}.npy")
    np.save(unfinished, np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32))
    unfinished.replace(cache)


def build_dataset(
    plan: dict[str, Any], arguments: TrainingArguments, options: argparse.Namespace, vocab: int
) -> Dataset:
    """Blocks of the plan's sequence length from --data, or synthetic ones."""
    seq_len = plan["request"]["seq_len"]
    if options.data is None:
        log.warning("no --data: training on synthetic tokens")
        per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
        return SyntheticTokens(vocab, seq_len, per_step * arguments.max_steps, options.seed)
    tokenizer = options.tokenizer or options.model or plan["model"]["hub_id"]
    if not tokenizer:
        raise SystemExit("--data needs a tokenizer: give --tokenizer or --model")
    identity = f"{options.data.resolve()} {options.data.stat().st_size} {options.data.stat().st_mtime_ns} {tokenizer}"
    cache = Path(options.output_dir) / f"tokens-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    with arguments.main_process_first(local=True, desc="tokenizing"):
        if not cache.exists():
            cache.parent.mkdir(parents=True, exist_ok=True)
            pack(options.data, tokenizer, cache)
    return PackedTokens(cache, seq_len)


class InForce(TrainerCallback):
    """Logs once what the engine really runs with."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        engine = self.trainer.model_wrapped
        tp = engine.autotp_size() or 1
        log.warning(
            "in force: ZeRO-%d, %d ranks = dp %d x tp %d, micro-batch %d, accumulation %d, global batch %d, %s, %s",
            *(engine.zero_optimization_stage(), args.world_size, args.world_size // tp, tp),
            *(engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()),
            engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps() * args.world_size // tp,
            *(
                type(engine.optimizer).__name__,
                "checkpointing" if args.activation_checkpointing else "no checkpointing",
            ),
        )


def build_trainer(options: argparse.Namespace) -> Trainer:
    """Arguments first, then the model, then its data."""
    plan, engine = read_files(HERE)
    arguments = training_arguments(plan, engine, options)
    logging.basicConfig(level=logging.WARNING if arguments.process_index == 0 else logging.ERROR, format="%(message)s")
    if not options.model:
        log.warning("no --model: random weights of the plan's architecture (%s)", plan["model"]["name"])
    model = build_model(plan, options)
    dataset = build_dataset(plan, arguments, options, model.config.get_text_config().vocab_size)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.add_callback(InForce(trainer))
    return trainer


def main(argv: list[str] | None = None) -> None:
    options = parse_arguments(argv)
    trainer = build_trainer(options)
    trainer.train(resume_from_checkpoint=options.resume or None)
    if options.model or options.data or options.save:
        # The engine gathers the whole model where ZeRO-3 or tensor parallelism has divided it; ds_config.json
        # sets stage3_gather_16bit_weights_on_model_save, without which only a sharded checkpoint is written.
        trainer.save_model(options.output_dir)


if __name__ == "__main__":
    main()
