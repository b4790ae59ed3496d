"""Rare sections against ranks, model and reader.

In: the files and the context. Out: Problems. Answers: do expert groups and meshes go with the ranks and the experts,
and does the reader bear who counts the accumulation? Source: deepspeed 0.19.8 module_inject/auto_ep_folding.py
`build_folding_spec`, auto_ep_config.py `validate_autoep_post_detection`, __init__.py `initialize` (mesh),
runtime/engine.py `set_gradient_accumulation_boundary`; accelerate 1.15 utils/deepspeed.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_file.rare_sections import EXPERTS, ZENFLOW, whole_of
from planner.check.one_run.known_models import EXPERT_COUNTS, text_config, type_of
from planner.check.one_run.run_facts import ranks_of, reader_of
from planner.check.rules import finding, take_out
from planner.check.together import Together
from planner.records.problem import Problem, Severity

FOUND_BY_AUTOEP = ("mixtral", "qwen3_moe", "qwen2_moe", "deepseek_v2", "deepseek_v3")
"""Model types with a preset that AutoEP detects, of those whose experts stand at the top of config.json."""


def expert_groups(together: Together, context: Context) -> Iterator[Problem]:
    file, ranks = together.deepspeed, ranks_of(together, context)
    block = section(file.fields, "expert_parallel") if file is not None else {}
    size = whole_of(block, "autoep_size", 1)
    if file is None or block.get("enabled") is not True or size is None or size < 1:
        return
    path, experts = f"{EXPERTS}.autoep_size", experts_of(context)
    if ranks is not None and ranks % size:
        message = f"{size} does not divide {ranks} ranks: ValueError"
        yield finding("DS077", path, message, fix=f"write a divisor of {ranks}", file=file.name)
    elif experts is not None and experts % size:
        message = f"{experts} experts do not divide by {size}: ValueError"
        yield finding("DS077", path, message, fix=f"write a divisor of {experts}", file=file.name)


def experts_of(context: Context) -> int | None:
    """Experts of a layer, where AutoEP finds them."""
    if type_of(context) not in FOUND_BY_AUTOEP:
        return None
    if context.model is not None:
        return context.model.experts if context.model.experts > 1 else None
    counts = (whole_of(text_config(context), key, 0) for key in EXPERT_COUNTS)
    return next((count for count in counts if count), None)


def mesh_is_the_ranks(together: Together, context: Context) -> Iterator[Problem]:
    """Both sizes together make a mesh; one of them alone makes none."""
    file, ranks = together.deepspeed, ranks_of(together, context)
    fields = file.fields if file is not None else {}
    sequence, data = (whole_of(fields, f"{name}_parallel_size", 0) for name in ("sequence", "data"))
    if file is None or ranks is None or not sequence or not data or sequence * data == ranks:
        return
    what = "RuntimeError" if sequence * data > ranks else "IndexError in the ranks that are left over"
    message = f"sequence x data parallel = {sequence} x {data} is not {ranks} ranks: {what}"
    edits = take_out("$.data_parallel_size")
    fix = f"write {ranks // sequence}" if ranks % sequence == 0 else "leave both out"
    yield finding("DS079", "$.data_parallel_size", message, fix=fix, file=file.name, edits=edits)


def accelerate_counts_accumulation(together: Together, context: Context) -> Iterator[Problem]:
    file, reader = together.deepspeed, reader_of(together, context)
    if file is None or reader not in (Reader.TRAINER, Reader.ACCELERATE):
        return
    path = "$.managed_gradient_accumulation"
    if file.fields.get("managed_gradient_accumulation") is False:
        message = "accelerate sets the boundary itself, which DeepSpeed then refuses: AssertionError"
        edits = take_out(path)
        yield finding("DS079", path, message, fix="leave it out", bites="first step", file=file.name, edits=edits)


def zenflow_divides_by_its_interval(together: Together, context: Context) -> Iterator[Problem]:
    """`"auto"` sets the accumulation to 0, and `backward` divides the loss by it, unless told not to, as the Trainer
    does."""
    file, reader = together.deepspeed, reader_of(together, context)
    block = section(file.fields, "zero_optimization").get("zenflow") if file is not None else None
    if file is None or not isinstance(block, Mapping) or reader is Reader.TRAINER:
        return
    if block.get("update_interval", "auto") == "auto":
        path = f"{ZENFLOW}.update_interval"
        message = '`"auto"`, the default, sets the accumulation to 0: the loss is divided by it and becomes NaN'
        severity = Severity.WARNING if reader is None else None
        yield finding("DS078", path, message, fix="write a number", severity=severity, bites="silently", file=file.name)


RULES = (expert_groups, mesh_is_the_ranks, accelerate_counts_accumulation, zenflow_divides_by_its_interval)
