"""The README of a plan folder.

In: the plan, its document, the launcher's notes. Out: Markdown. Answers, for whoever opens the folder later: what was
chosen and why, how is it started, on which data, and what was assumed?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.catalog.versions import earlier_sentences
from planner.errors import one_line
from planner.explain.why import method_text
from planner.records.candidate import Candidate, Checkpointing, Offload, ZeroStage
from planner.records.model import Precision
from planner.records.plan import Plan
from planner.records.request import Integration, Loss, extra_packages
from planner.render.deepspeed_json import NVME_PATH
from planner.render.launchers.shell import Launcher
from planner.units import gib_text
from planner.version import TARGET_VERSIONS

STAGES = {
    0: "ZeRO off: every rank holds everything",
    1: "ZeRO-1: optimizer states shared out",
    2: "ZeRO-2: optimizer states and gradients shared out",
    3: "ZeRO-3: optimizer states, gradients and parameters shared out",
}
OFFLOADS = {
    Offload.NONE: "none",
    Offload.OPTIMIZER: "optimizer states and master weights in host memory, step on the CPU",
    Offload.OPTIMIZER_AND_PARAMS: "optimizer states, master weights and parameters in host memory, step on the CPU",
    Offload.NVME: "optimizer states and parameters on local NVMe, step on the CPU",
}
SCRIPT_IS = {
    Integration.TRAINER: "the training script that comes with the plan, around the Hugging Face Trainer",
    Integration.ACCELERATE: "the training script that comes with the plan, a loop around `Accelerator`",
    Integration.DEEPSPEED: "the training script that comes with the plan, a loop around `deepspeed.initialize`",
}
VALUES_ARE_IN = {
    Integration.TRAINER: "Change learning rate, betas, epsilon and weight decay in `training_args.json`: "
    '`ds_config.json` says "auto" for them, which the Trainer fills. Micro-batch, accumulation, clipping and precision '
    "are part of the plan and plain numbers in both files; the Trainer refuses to start where they differ.",
    Integration.ACCELERATE: "`ds_config.json` is the only home of what it holds, learning rate included, and nothing "
    'in it is "auto". The learning-rate schedule is in train.py, which knows the number of steps.',
    Integration.DEEPSPEED: "`ds_config.json` is the only home of what it holds, learning rate included, and nothing "
    'in it is "auto". The learning-rate schedule is in train.py, which knows the number of steps.',
}
OWN_SCRIPT_READS = {
    Integration.TRAINER: "Its Trainer has to take `training_args.json`, for example with "
    '`HfArgumentParser(TrainingArguments).parse_json_file("training_args.json")`: these arguments name '
    "`ds_config.json` and go with it. `--integration` writes files for other loops.",
    Integration.ACCELERATE: "Its `Accelerator()` finds `ds_config.json` by what `launch.sh` tells it; give `prepare` a "
    "`DummyOptim`, for the file names the optimizer.",
    Integration.DEEPSPEED: 'It has to name the file itself: `deepspeed.initialize(config="ds_config.json", ...)`.',
}


def readme(plan: Plan, document: Mapping[str, Any], launcher: Launcher) -> str:
    """The whole text."""
    cluster, best = plan.request.cluster, document["plans"][0]
    title = f"# {name(plan.request.model.name)} on {cluster.nodes} x {cluster.gpus_per_node} x {name(cluster.gpu.name)}"
    sections = [
        title,
        "Written by dsplan. `plan.json` holds the whole calculation, term by term.",
        "## What was chosen\n\n" + chosen(plan, best),
        "## Why\n\n" + bullets(best["reasons"]) if best["reasons"] else "",
        "## Start it\n\n" + start(plan, launcher),
        "## Data\n\n" + data(plan),
        "## What was assumed\n\n" + bullets(document["assumptions"]) if document["assumptions"] else "",
        "## Other releases\n\n" + other_releases(plan.ranked[0].candidate),
        "## Files\n\n" + files(plan, launcher),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def chosen(plan: Plan, best: Mapping[str, Any]) -> str:
    """The settings and the predicted numbers as a table."""
    candidate = plan.ranked[0].candidate
    tp, dp = candidate.degrees.tp, candidate.degrees.dp
    gpu, host, time = best["memory"]["gpu"], best["memory"]["host"], best["time"]
    group = "GPU" if tp == 1 else f"group of {tp} GPUs"
    peak = f"{gib_text(gpu['peak_bytes'])} of {gib_text(gpu['capacity_bytes'])}"
    rows = {
        "ZeRO": STAGES[int(candidate.zero)],
        "tensor parallel": f"{tp}, data parallel {dp}" if tp > 1 else f"no, data parallel {dp}",
        "activation checkpointing": "every layer" if candidate.checkpointing is Checkpointing.FULL else "no",
        "offload": OFFLOADS[candidate.offload],
        "batch": f"micro-batch {candidate.micro_batch} per {group} x {candidate.accumulation} accumulation x {dp} "
        f"= {candidate.global_batch} samples a step",
        "trained": method_text(plan.request.workload),
        "precision": best["precision"],
        "GPU memory": f"{peak}, fullest in {gpu['limiting_phase']} ({best['verdict']})",
        "host memory per node": host_memory(host),
        "one checkpoint": checkpoint(plan.request.integration, best),
        "final model": final_model(plan),
    }
    if time is not None:
        rows["predicted speed"] = (
            f"{time['tokens_per_second_per_gpu']:,.0f} tokens/s per GPU, MFU {100 * time['mfu']:.0f} %"
        )
    return "| | |\n|---|---|\n" + "\n".join(f"| {label} | {value} |" for label, value in rows.items())


def host_memory(host: Mapping[str, Any]) -> str:
    """What a node's RAM holds at its fullest, and how much of it cannot be swapped out."""
    pinned = f", {gib_text(host['pinned_bytes'])} of it page-locked" if host["pinned_bytes"] else ""
    return f"{gib_text(host['peak_bytes'])}{pinned}"


def checkpoint(integration: Integration, best: Mapping[str, Any]) -> str:
    """Disk space of one checkpoint; the Trainer keeps two and writes the third before it deletes the first."""
    size = sum(term["bytes"] for term in best["memory"]["terms"] if term["name"] == "checkpoint/files")
    if integration is not Integration.TRAINER:
        return f"{gib_text(size)} on disk; `--save-steps` keeps every one"
    return f"{gib_text(size)} on disk; with `--save-steps` up to three at a time, {gib_text(3 * size)}"


def final_model(plan: Plan) -> str:
    """What is saved at the end, in which precision, and where fp32 weights are to be had."""
    candidate, workload = plan.ranked[0].candidate, plan.request.workload
    stage, tp = candidate.zero, candidate.degrees.tp
    dtype = {Precision.FP16: "fp16", Precision.FP32: "fp32"}.get(workload.precision, "bf16")
    what = "the adapters alone" if workload.adapter else "whole weights"
    spread = [f"ZeRO-{int(stage)} ranks"] if stage is ZeroStage.PARAMETERS else []
    spread += ["tensor-parallel ranks"] if tp > 1 else []
    gathered = f", gathered from the {' and '.join(spread)}" if spread else ""
    text = f"{what} in {dtype}{gathered}, in Hugging Face's format"
    masters = workload.precision in (Precision.BF16, Precision.FP16) and stage is not ZeroStage.DISABLED
    if masters and tp == 1 and workload.adapter is None:
        text += "; the fp32 master weights are in the checkpoints, where `zero_to_fp32.py` makes one file of them"
    return text


def start(plan: Plan, launcher: Launcher) -> str:
    """The command, once or per node, and what has to be edited before."""
    request, candidate = plan.request, plan.ranked[0].candidate
    packages = ["torch", "deepspeed", "accelerate", "transformers", *extra_packages(request.workload)]
    needed = ", ".join(f"`{package}`" for package in packages[:-1])
    lines = [f"Needs {needed} and `{packages[-1]}`; `plan.json` names the releases (`versions`)."]
    if request.workload.loss is Loss.FUSED:
        lines.append("The fused loss needs `liger-kernel` too.")
    if candidate.offload is Offload.NVME:
        lines.append(
            f"First replace `{NVME_PATH}` in `ds_config.json` by the folder where the local NVMe drive is mounted."
        )
    if request.cluster.nodes == 1:
        lines.append("```\nbash launch.sh\n```")
        lines.append("`MASTER_PORT` chooses the port; by default a free one is taken.")
    else:
        rank = "NODE_RANK=0 " if launcher.needs_node_rank else ""
        others = " with its own NODE_RANK" if launcher.needs_node_rank else ""
        lines.append(f"On every node, the folder at the same place, started{others} within a few minutes:")
        lines.append(f"```\nMASTER_ADDR=<first node> {rank}bash launch.sh\n```")
        lines.append("`MASTER_PORT` chooses the port, the same on every node.")
    lines.extend(launcher.notes)
    lines.append(
        "`dsplan smoke` with this folder tries the same files on the CPU with the real engine and a shrunken model."
    )
    return "\n\n".join(lines)


def data(plan: Plan) -> str:
    """How data reaches the training script: the plan's own, or the user's."""
    if plan.request.script is None:
        saved = " What it saves is the adapter alone." if plan.request.workload.adapter else ""
        return (
            "Without arguments `train.py` trains random weights on synthetic tokens, which shows memory and speed.\n\n"
            "```\nbash launch.sh --model /path/or/hub-id --data /path/to/text-or.jsonl\n```\n\n"
            "trains the real weights on your file: plain text, or JSONL with a `text` field. Give whole paths, for "
            f"`launch.sh` works in this folder; `python train.py --help` lists the other arguments.{saved}"
        )
    return (
        "`launch.sh` starts your script with its arguments and works in this folder, so paths in arguments are "
        f"relative to it. {OWN_SCRIPT_READS[plan.request.integration]}\n\n"
        "The plan holds only if the script trains with its sequence length, precision and activation checkpointing "
        "(`plan.json`), and if its micro-batch and accumulation are those of `ds_config.json`."
    )


def other_releases(candidate: Candidate) -> str:
    """What earlier releases do otherwise, as far as it concerns this plan."""
    made_for = ", ".join(f"{package} {version}" for package, version in TARGET_VERSIONS.items())
    earlier = earlier_sentences(candidate)
    told = (
        f"What earlier ones do otherwise:\n\n{bullets(list(earlier))}"
        if earlier
        else "No earlier one is known to differ."
    )
    return f"The numbers are those of {made_for}. {told}"


def files(plan: Plan, launcher: Launcher) -> str:
    """One line a file, and who owns which value."""
    integration = plan.request.integration
    known = {
        "ds_config.json": "every DeepSpeed setting of the plan, as plain numbers",
        "accelerate.yaml": "process counts for `accelerate launch`; names `ds_config.json`",
        "launch.sh": "starts the run",
        "train.py": SCRIPT_IS[integration],
        "model_and_data.py": "builds the model and the batches for train.py",
        "loop_parts.py": "steps, schedule and checkpoints of train.py's loop",
        "training_args.json": "the Trainer's arguments: learning rate, warm-up, seed, data loader",
        "loop_args.json": "what train.py's loop takes beside ds_config.json: warm-up, seed, data loader",
        "plan.json": "request, candidates, memory and time terms with formulas and sources",
        "hostfile": "nodes and their GPU counts for the `deepspeed` launcher",
        ".deepspeed_env": "environment that the `deepspeed` launcher carries to other nodes over ssh",
    }
    beside = ("training_args.json",) if integration is Integration.TRAINER else ("loop_parts.py", "loop_args.json")
    own = ("ds_config.json", *beside, "accelerate.yaml", "launch.sh", "train.py", "model_and_data.py", "plan.json")
    lines = [f"- `{file}`: {known[file]}" for file in (*own, *launcher.files)]
    schemas = "- `ds_config.schema.json`, `accelerate.schema.json`: by these, editors check and explain the two files"
    return "\n".join([*lines, schemas, "", VALUES_ARE_IN[integration]])


def name(text: str) -> str:
    """A name from outside, on one line."""
    return one_line(text)


def bullets(lines: list[str]) -> str:
    """A Markdown list of one-line items."""
    return "\n".join(f"- {name(line)}" for line in lines)
