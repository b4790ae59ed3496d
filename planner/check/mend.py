"""Which findings have a mechanical fix, and what it is.

In: a finding and the document that it is about. Out: edits; none where there is something to decide. Answers: what
would anybody write here who knows the rule? A rule that gives edits of its own is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from planner.check.deepspeed_rules import GATHER, PRESETS, ZERO
from planner.check.keys import REMOVED_IN, sections_with
from planner.check.schema import load_schema
from planner.check.together import File, Kind
from planner.check.training_rules import GONE, OWN, PARAMETERS, SCHEDULERS
from planner.errors import nearest
from planner.records.problem import Edit, EditKind, Problem, Severity

Edits = tuple[Edit, ...]
MISSING = object()
# Names that people carry over from elsewhere.
OTHER_NAMES = {
    ("$.aio", "thread_count"): "$.aio.intra_op_parallelism",
    ("$", "load_universal_checkpoint"): "$.checkpoint.load_universal",
    ("$.tensor_parallel", "tp_size"): "$.tensor_parallel.autotp_size",
    ("$.optimizer.params", "learning_rate"): "$.optimizer.params.lr",
    ("$.optimizer.params", "max_grad_norm"): "$.gradient_clipping",
    ("$.deepspeed_config", GATHER): "$.deepspeed_config.zero3_save_16bit_model",
}
WITHOUT_EFFECT = {("$.tensor_parallel", "enabled"), ("$.activation_checkpointing", "enabled")}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
DEVICES = {"gpu": "none", "cuda": "none", "disk": "nvme"}
TORCH_OPTIMIZERS = (
    *("SGD", "ASGD", "RMSprop", "Rprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Adafactor", "LBFGS", "SparseAdam"),
)
"""Source: torch.optim (2.13); DeepSpeed takes any of these by name."""
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
# Of an Accelerate file of older releases; accelerate 1.15 refuses them.
OLD_ACCELERATE_KEYS = ("ipex_config", "tp_config", "use_parallelism_config")


def mechanical(problem: Problem, file: File) -> Edits:
    """The edits that mend a finding in its file."""
    if problem.edits:
        return problem.edits
    rule = MENDERS.get(problem.rule)
    return rule(problem, file) if rule is not None and file.name == problem.file else ()


def value_at(document: Any, path: str) -> Any:
    """The value at a path without list items; MISSING where there is none."""
    for key in path.split(".")[1:]:
        if not isinstance(document, Mapping) or key not in document:
            return MISSING
        document = document[key]
    return document


def _remove(problem: Problem, file: File) -> Edits:
    return (Edit(kind=EditKind.REMOVE, path=problem.path),)


def _set(path: str, value: Any) -> Edits:
    return (Edit(kind=EditKind.SET, path=path, value=value),)


def _zero(problem: Problem, file: File) -> Edits:
    return _set(problem.path, 0)


def _on(problem: Problem, file: File) -> Edits:
    return (Edit(kind=EditKind.SET, path=problem.path, value=True),)


def _device_none(problem: Problem, file: File) -> Edits:
    return _set(problem.path, "none")


def _move(problem: Problem, to: str, file: File) -> Edits:
    """To another name or section; where that is taken, the stray key only goes."""
    if value_at(file.document, to) is not MISSING:
        return (Edit(kind=EditKind.REMOVE, path=problem.path),)
    here, there = problem.path.rpartition("."), to.rpartition(".")
    if here[0] == there[0]:
        return (Edit(kind=EditKind.RENAME, path=problem.path, to=there[2]),)
    return (Edit(kind=EditKind.MOVE, path=problem.path, to=to),)


def _stray_key(problem: Problem, file: File) -> Edits:
    """A key under a wrong name or in a wrong section; one that nobody reads goes only where it stops the run."""
    section, _, key = problem.path.rpartition(".")
    if (section, key) in OTHER_NAMES:
        return _move(problem, OTHER_NAMES[section, key], file)
    if (section, key) in WITHOUT_EFFECT:
        return _remove(problem, file)
    if problem.severity is Severity.INFO:
        return ()
    if problem.path == "$.tensor_parallel.preset_model":
        near = nearest(str(value_at(file.document, problem.path)), PRESETS, limit=1)
        return _set(problem.path, near[0]) if near else _remove(problem, file)
    schema = load_schema(file.kind.value)
    homes = [home for home in sections_with(schema, key) if home != section]
    known = _properties(schema, section)
    if section.startswith("$.bf16") and homes:  # loss scaling, which bf16 does not need
        return _remove(problem, file)
    near = nearest(key, known, limit=1)
    if homes and file.kind is Kind.DEEPSPEED and len(homes) == 1:
        return _move(problem, f"{homes[0]}.{key}", file)
    if near and not homes:
        return _move(problem, f"{section}.{near[0]}", file)
    return _remove(problem, file) if problem.rule in ("DS010", "DS111") else ()


def _accelerate_key(problem: Problem, file: File) -> Edits:
    section, _, key = problem.path.rpartition(".")
    schema = load_schema("accelerate")
    if problem.rule == "DS110" and key in OLD_ACCELERATE_KEYS:
        return _remove(problem, file)
    if problem.rule == "DS110" and key in _properties(schema, "$.deepspeed_config"):
        return _move(problem, f"$.deepspeed_config.{key}", file)
    prefixed = f"{section.rpartition('.')[2]}_{key}"
    if section.count(".") == 1 and prefixed in _properties(schema, section):
        return _move(problem, f"{section}.{prefixed}", file)
    return _stray_key(problem, file)


def _properties(schema: Mapping[str, Any], section: str) -> list[str]:
    part = _part(schema, section)
    return list(part.get("properties", ())) if part else []


def _part(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The part of the schema that describes a path; empty where there is none."""
    part: Mapping[str, Any] = schema
    for key in path.split(".")[1:]:
        options = [_resolved(schema, option) for option in (part, *part.get("anyOf", ()))]
        found = next((option["properties"][key] for option in options if key in option.get("properties", {})), None)
        if found is None:
            return {}
        part = _resolved(schema, found)
    options = [_resolved(schema, option) for option in (part, *part.get("anyOf", ()))]
    return next((option for option in options if "properties" in option), part)


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    resolved: Mapping[str, Any] = schema["$defs"][part["$ref"].removeprefix("#/$defs/")] if "$ref" in part else part
    return resolved


def _wrong_value(problem: Problem, file: File) -> Edits:
    """A value that plainly means one of those that are allowed."""
    value = value_at(file.document, problem.path)
    if value is MISSING:
        return ()
    part = _part(load_schema(file.kind.value), problem.path)
    options = [part, *part.get("anyOf", ())]
    kinds = {kind for option in options for kind in _kinds(option)}
    allowed = [item for option in options for item in option.get("enum", ())]
    if problem.path.endswith((".mixed_precision", ".distributed_type")) and value is False:
        return _set(problem.path, "no" if problem.path.endswith("mixed_precision") else "NO")
    if isinstance(value, float) and not isfinite(value):
        return _set(problem.path, 0) if problem.path == "$.fp16.loss_scale" else ()
    if isinstance(value, str):
        meant = _meant(value, kinds, allowed)
        return _set(problem.path, meant[0]) if meant else ()
    numeric = bool(kinds & {"integer", "number"})
    if isinstance(value, bool):
        return _set(problem.path, int(value)) if numeric and "boolean" not in kinds else ()
    if isinstance(value, float) and value.is_integer() and "integer" in kinds:
        return _set(problem.path, int(value))
    return _set(problem.path, bool(value)) if value in (0, 1) and "boolean" in kinds and not numeric else ()


def _kinds(part: Mapping[str, Any]) -> list[str]:
    kind = part.get("type", [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    listed = [names[type(item)] for item in part.get("enum", ()) if type(item) in names]
    return ([kind] if isinstance(kind, str) else list(kind)) + listed


def _meant(text: str, kinds: set[str], allowed: list[Any]) -> list[Any]:
    word = text.strip().rstrip(",").casefold()
    texts = {str(item).casefold(): item for item in allowed}
    for other in (word, DTYPES.get(word, word), DEVICES.get(word, word)):
        if other in texts:
            return [texts[other]]
    if "boolean" in kinds and word in TRUE + FALSE:
        return [word in TRUE]
    if kinds & {"integer", "number"}:
        try:
            number = float(word.replace("_", ""))
        except ValueError:
            return []
        if isfinite(number) and number.is_integer() and abs(number) < 1e15:
            return [int(number)]
        return [number] if "number" in kinds and isfinite(number) else []
    return nearest(text, [item for item in allowed if isinstance(item, str)], limit=1)


def _removed_block(problem: Problem, file: File) -> Edits:
    key = problem.path.rpartition(".")[2]
    value = value_at(file.document, problem.path)
    asks_for_something = not isinstance(value, Mapping) or value.get("enabled") not in (None, False)
    if key in ("amp", "curriculum_learning") and asks_for_something:
        return ()  # training goes on without it, in another way
    return _remove(problem, file) if key in REMOVED_IN["$"] | REMOVED_IN[ZERO] else ()


def _auto(problem: Problem, file: File) -> Edits:
    """Left out, the key has the same default; not so for those that the run needs."""
    batch = problem.path.count(".") == 1
    if problem.path == "$.train_batch_size":
        return _total_batch(problem, file)
    needed = problem.path.startswith(("$.optimizer", "$.scheduler")) or batch or problem.path.endswith(".enabled")
    return () if needed or problem.path == f"{ZERO}.stage" else _remove(problem, file)


def _total_batch(problem: Problem, file: File) -> Edits:
    micro = value_at(file.document, "$.train_micro_batch_size_per_gpu")
    return _remove(problem, file) if micro not in (MISSING, None) and problem.path == "$.train_batch_size" else ()


def _old_name(problem: Problem, file: File) -> Edits:
    key = problem.path.rpartition(".")[2]
    value = value_at(file.document, problem.path)
    if key.startswith("stage3_gather"):
        return _move(problem, f"{ZERO}.{GATHER}", file)
    new = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}.get(key)
    if new is None or not isinstance(value, bool):
        return ()
    there = value_at(file.document, f"{ZERO}.{new}") is not MISSING
    return (*(_set(f"{ZERO}.{new}", {"device": "cpu"}) if value and not there else ()), *_remove(problem, file))


def _strict(problem: Problem, file: File) -> Edits:
    """Where the reader takes strict JSON only; for DeepSpeed itself the comments may stay."""
    return (Edit(kind=EditKind.STRICT, path="$"),) if problem.severity is Severity.ERROR else ()


def _same_setting(problem: Problem, file: File) -> Edits:
    """A name and its alias with one value."""
    value = value_at(file.document, problem.path)
    section, _, key = problem.path.rpartition(".")
    other = key.removeprefix("stage3_") if key.startswith("stage3_") else f"stage3_{key}"
    return _remove(problem, file) if value == value_at(file.document, f"{section}.{other}") else ()


def _tensor_parallel_size(problem: Problem, file: File) -> Edits:
    size = value_at(file.document, problem.path)
    given = value_at(file.document, "$.tensor_parallel.autotp_size")
    switched_on = () if isinstance(given, int) and given > 1 else _set("$.tensor_parallel.autotp_size", size)
    return (*switched_on, *_remove(problem, file))


def _optimizer_parameter(problem: Problem, file: File) -> Edits:
    section, _, key = problem.path.rpartition(".")
    if (section, key) in OTHER_NAMES:
        return _move(problem, OTHER_NAMES[section, key], file)
    known = PARAMETERS.get(str(value_at(file.document, "$.optimizer.type")).lower(), ())
    near = nearest(key, known, limit=1)
    return _move(problem, f"{section}.{near[0]}", file) if near and key not in known else _remove(problem, file)


def _scheduler(problem: Problem, file: File) -> Edits:
    value, key = value_at(file.document, problem.path), problem.path.rpartition(".")[2]
    if key == "type":
        near = nearest(str(value), SCHEDULERS, limit=1)
        return _set(problem.path, near[0]) if near else ()
    if key == "warmup_num_steps":
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and value == int(value)
        return _set(problem.path, int(value)) if whole else ()
    if key == "warmup_max_lr" and value is MISSING:
        rate = value_at(file.document, "$.optimizer.params.lr")
        return _set(problem.path, rate) if isinstance(rate, (int, float, str)) else ()
    return _remove(problem, file) if value is not MISSING and key != "total_num_steps" else ()


def _reduction(problem: Problem, file: File) -> Edits:
    return _set(problem.path, "mean") if problem.path == "$.gradient_allreduce_op" else _remove(problem, file)


def _optimizer_type(problem: Problem, file: File) -> Edits:
    kind = str(value_at(file.document, "$.optimizer.type"))
    if kind.lower() in GONE:
        return ()  # another optimizer, with other parameters
    near = nearest(kind.lower(), OWN, limit=1)
    if near and kind.lower() not in OWN and kind not in TORCH_OPTIMIZERS:
        return _set("$.optimizer.type", near[0])
    return (Edit(kind=EditKind.SET, path="$.zero_allow_untested_optimizer", value=True),)


def _muon(problem: Problem, file: File) -> Edits:
    off = Edit(kind=EditKind.SET, path=problem.path, value=False)
    return (off,) if problem.path.endswith("reduce_scatter") else ()


def _two_homes(problem: Problem, file: File) -> Edits:
    return () if problem.path == "$.mixed_precision" else _remove(problem, file)


def _parallelism(problem: Problem, file: File) -> Edits:
    section, _, key = problem.path.rpartition(".")
    if key.startswith("parallelism_config_"):
        return _remove(problem, file)
    return _move(problem, f"{section}.parallelism_config_{key}", file)


def _host_file(problem: Problem, file: File) -> Edits:
    return _set("$.deepspeed_config.deepspeed_multinode_launcher", "standard")


MENDERS: Mapping[str, Callable[[Problem, File], Edits]] = {
    "DS002": _strict,
    "DS003": _same_setting,
    "DS010": _stray_key,
    "DS011": _stray_key,
    "DS012": _removed_block,
    "DS013": _wrong_value,
    "DS014": _auto,
    "DS015": _old_name,
    "DS021": _total_batch,
    "DS022": _total_batch,
    "DS031": _zero,
    "DS032": _remove,
    "DS040": _remove,
    "DS041": _remove,
    "DS043": _remove,
    "DS044": _remove,
    "DS045": _on,
    "DS050": _tensor_parallel_size,
    "DS061": _remove,
    "DS062": _optimizer_parameter,
    "DS063": _scheduler,
    "DS064": _reduction,
    "DS066": _optimizer_type,
    "DS067": _muon,
    "DS110": _accelerate_key,
    "DS111": _accelerate_key,
    "DS112": _wrong_value,
    "DS120": _two_homes,
    "DS122": _host_file,
    "DS125": _device_none,
    "DS126": _parallelism,
}
"""By rule. What is absent needs a decision: another precision, another stage, another number of GPUs."""
