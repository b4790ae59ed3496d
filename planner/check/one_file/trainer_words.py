"""Words of TrainingArguments that are no choice of their argument.

In: the document, of a file or of the flags of a launch line. Out: Problems (DS309). Answers: does transformers know the
strategy, the schedule, the optimizer, the FSDP option? Other programs have words of their own under the same names: a
word that is like none of transformers' is an error only among the Trainer's own arguments. Source: transformers 5.24
training_args.py, trainer_utils.py, integrations/integration_utils.py; a test compares the tables with the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from planner.check.one_file.trainer_facts import is_plain
from planner.check.reading.arguments import is_told
from planner.check.rules import finding, take_out, write
from planner.errors import nearest
from planner.records.problem import Problem, Severity

INTERVALS = ("no", "steps", "epoch")
LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")
OPTIMIZERS_TEXT = """
    adamw_torch adamw_torch_fused adamw_torch_xla adamw_torch_npu_fused adafactor adamw_anyprecision adamw_torch_4bit
    adamw_torch_8bit ademamix sgd adagrad adamw_bnb_8bit adamw_8bit ademamix_8bit lion_8bit lion_32bit
    paged_adamw_32bit paged_adamw_8bit paged_ademamix_32bit paged_ademamix_8bit paged_lion_32bit paged_lion_8bit
    rmsprop rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit galore_adamw galore_adamw_8bit galore_adafactor
    galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw
    schedule_free_radam schedule_free_adamw schedule_free_sgd apollo_adamw apollo_adamw_layerwise stable_adamw
"""
WORDS: Mapping[str, tuple[str, ...]] = {
    "eval_strategy": INTERVALS,
    "evaluation_strategy": INTERVALS,
    "logging_strategy": INTERVALS,
    "save_strategy": (*INTERVALS, "best"),
    "hub_strategy": ("end", "every_save", "checkpoint", "all_checkpoints"),
    "lr_scheduler_type": (
        *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup"),
        *("inverse_sqrt", "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr"),
        *("warmup_stable_decay", "greedy"),
    ),
    "optim": tuple(OPTIMIZERS_TEXT.split()),
    "debug": ("underflow_overflow", "tpu_metrics_debug"),
    "log_level": LEVELS,
    "log_level_replica": LEVELS,
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
}
ENUMS = tuple(name for name in WORDS if name not in ("debug", "train_sampling_strategy", "evaluation_strategy"))
"""Arguments that are made a choice of, whatever is given."""
REPORTS = (
    *("azure_ml", "comet_ml", "mlflow", "neptune", "tensorboard", "trackio", "wandb", "codecarbon", "clearml"),
    *("dagshub", "flyte", "dvclive", "swanlab", "kubeflow"),
)
BY_ITSELF = ("all", "none")
"""Values of `report_to` that stand alone."""
GONE = {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"}
"""Optimizers of transformers 4, and what takes their place."""
SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
IN_FSDP2 = ("full_shard", "shard_grad_op")
FSDP = (*SHARDING, "offload", "auto_wrap")
SLIP = 0.85
"""Likeness of a word to the one that was meant: `step` for `steps`."""


def words_are_known(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    for name, known in WORDS.items():
        value = arguments.get(name)
        words = value.split() if name == "debug" and isinstance(value, str) else [value]
        if value is False and "no" in known:
            message = f"`{name}` is false here, not the word `no`, as YAML has it without quotes: it is refused"
            yield finding("DS309", f"$.{name}", message, fix='write "no", in quotes', edits=write(f"$.{name}", "no"))
        elif value is None and name in arguments and name in ENUMS:
            severity = Severity.ERROR if is_plain(arguments) else Severity.WARNING
            message, fix = f"null is no choice of `{name}`: it is refused", "leave it out"
            yield finding("DS309", f"$.{name}", message, fix=fix, severity=severity, edits=take_out(f"$.{name}"))
        for word in words:
            if isinstance(word, str) and is_told(word) and word not in known:
                yield _unknown(arguments, name, word, known, alone=word == value)


def reports_are_known(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    value = arguments.get("report_to")
    if value in (None, False, "") and "report_to" in arguments:
        message = "an empty `report_to` is taken for the name of an integration: transformers 5 refuses it"
        edits = write("$.report_to", "none")
        yield finding("DS309", "$.report_to", message, fix='write "none"', severity=Severity.WARNING, edits=edits)
        return
    words = value if isinstance(value, list) else [value]
    if len(words) == 1 and words[0] in BY_ITSELF:
        return
    for word in words:
        if not isinstance(word, str) or not is_told(word) or word in REPORTS:
            continue
        if "," in word and all(part.strip() in REPORTS for part in word.split(",")):
            message = f"`{word}` is taken for the name of one integration: it is refused"
            edits = write("$.report_to", [part.strip() for part in word.split(",")]) if word == value else ()
            yield finding("DS309", "$.report_to", message, fix="write a list", edits=edits)
        elif word in BY_ITSELF:
            message = f"`{word}` stands alone: among others it is refused"
            yield finding("DS309", "$.report_to", message, fix="take it out, or the others")
        else:
            yield _unknown(arguments, "report_to", word, (*REPORTS, *BY_ITSELF), alone=word == value)


def fsdp_options_are_known(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    value, config = arguments.get("fsdp"), arguments.get("fsdp_config")
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
    version = config.get("version", config.get("fsdp_version", 2)) if isinstance(config, Mapping) else 2
    for word in words:
        if not isinstance(word, str) or not is_told(word) or word in ("offload", "auto_wrap"):
            continue
        if word.lower() in ("true", "false"):
            message = f"the text `{word}` is no option of `fsdp`: it is refused"
            edits = write("$.fsdp", word.lower() == "true") if word == value else ()
            fix = "give the flag without a value, or leave it out; in a file write true without quotes"
            yield finding("DS309", "$.fsdp", message, fix=fix, edits=edits)
        elif word.lower() not in SHARDING:
            yield _unknown(arguments, "fsdp", word, FSDP, alone=word == value)
        elif word not in IN_FSDP2 and version in (2, "2") and isinstance(config, (Mapping, type(None))):
            message = f"FSDP 2, which is the default, has no `{word}`: it is refused"
            fix = "write full_shard or shard_grad_op, or `version: 1` in `fsdp_config`"
            yield finding("DS309", "$.fsdp", message, fix=fix, severity=Severity.WARNING)  # transformers 4 has FSDP 1


def _unknown(arguments: Mapping[str, Any], name: str, word: str, known: tuple[str, ...], *, alone: bool) -> Problem:
    """A word that is no choice; `alone`: it is the whole value."""
    near = meant(word, known)
    path, message = f"$.{name}", f"`{word}` is no choice of `{name}`: it is refused"
    bites = "silently" if name == "train_sampling_strategy" else "config"
    if bites == "silently":
        message = f"`{word}` is no choice of `{name}`: a file that says so is shuffled as usual, a flag is refused"
    if name == "optim" and word in GONE:
        message, fix = f"transformers 5 has no `{word}`: it is refused", f"write {GONE[word]}"
        edits = write(path, GONE[word])
        return finding("DS309", path, message, fix=fix, severity=Severity.WARNING, edits=edits)
    alike = nearest(word, known, limit=1)
    fix = f"did you mean `{near or alike[0]}`?" if near or alike else f"it is one of {', '.join(known[:8])}"
    sure = is_plain(arguments) or (near is not None and known is not LEVELS)  # many scripts have a log_level
    severity = Severity.ERROR if sure else Severity.WARNING
    edits = write(path, near) if near is not None and alone else ()
    return finding("DS309", path, message, fix=fix, severity=severity, bites=bites, edits=edits)


def meant(word: str, known: tuple[str, ...]) -> str | None:
    """The word that this one is a slip of; a number in it is no slip: `adamw_4bit` is not `adamw_8bit`."""
    plain = word.strip(" ,").casefold().replace("-", "_")
    likeness = {other: SequenceMatcher(None, plain, other).ratio() for other in known}
    best = max(likeness, key=lambda other: (likeness[other], other))
    return best if likeness[best] >= SLIP and _digits(plain) == _digits(best) else None


def _digits(word: str) -> str:
    return "".join(letter for letter in word if letter.isdigit())


RULES = (words_are_known, reports_are_known, fsdp_options_are_known)
