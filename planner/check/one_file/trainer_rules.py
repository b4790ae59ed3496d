"""TrainingArguments that transformers refuses by themselves.

In: the document, of a file or of the flags of a launch line. Out: Problems (DS308). Answers: will TrainingArguments and
the Trainer be made at all? Source: transformers 5.24 training_args.py `__post_init__` and `_validate_args`, trainer.py
`_validate_args`; torch 2.13 utils/data/dataloader.py; a test asks the installed classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from planner.check.one_file import trainer_words
from planner.check.one_file.trainer_facts import is_known, is_on, is_plain, number_of, severity_of, value_of
from planner.check.one_file.trainer_words import WORDS
from planner.check.reading.arguments import is_told
from planner.check.rules import finding, write
from planner.records.problem import Edit, Problem, Severity

LARGE = 1_000_000
"""What transformers multiplies two shares by before it divides them."""
WANT_EVALUATION = ("reduce_lr_on_plateau", "greedy")
WANT_WORKERS = {
    "dataloader_prefetch_factor": "config",
    "dataloader_persistent_workers": "engine init",
    "dataloader_multiprocessing_context": "engine init",
}
"""Settings of the data loader's processes, and when they fail without one."""
AT_LEAST = {
    "warmup_steps": (0, "config"),
    "learning_rate": (0, "engine init"),
    "dataloader_num_workers": (0, "engine init"),
    "per_device_train_batch_size": (1, "engine init"),
    "torch_empty_cache_steps": (1, "config"),
}
STEPS = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}


def trainer_problems(arguments: Mapping[str, Any]) -> list[Problem]:
    """Every rule of this module and of the words over one set of arguments."""
    return [problem for rule in (*trainer_words.RULES, *RULES) for problem in rule(arguments)]


def word_of(arguments: Mapping[str, Any], name: str) -> str | None:
    """A choice that transformers knows, or the default; None for everything else."""
    value = value_of(arguments, name)
    return value if isinstance(value, str) and value in WORDS[name] else None


def best_model_wants_one_strategy(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    save, evaluate = (word_of(arguments, name) for name in ("save_strategy", "eval_strategy"))
    if not is_on(arguments, "load_best_model_at_end") or save is None or evaluate is None or save == "best":
        return
    if save == evaluate:
        if save == "steps":
            yield from _steps_go_together(arguments)
        return
    message = f"`load_best_model_at_end` wants one strategy: saving by `{save}`, evaluating by `{evaluate}` is refused"
    fix = "write the same for both"
    edits: tuple[Edit, ...] = ()
    if evaluate == "no":
        message = f"`load_best_model_at_end` wants an evaluation with every save: `eval_strategy` {evaluate} is refused"
        fix = f"set `eval_strategy` to {save}"
    elif "save_strategy" not in arguments:
        fix, edits = f"set `save_strategy` to {evaluate}", write("$.save_strategy", evaluate)
    severity = severity_of(arguments, "save_strategy", "eval_strategy")
    yield finding("DS308", "$.load_best_model_at_end", message, fix=fix, severity=severity, edits=edits)


def _steps_go_together(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Each save needs its evaluation."""
    own = arguments.get("eval_steps")
    by = "eval_steps" if own else "logging_steps"  # transformers takes these where the others are absent or 0
    save, evaluate = number_of(arguments, "save_steps"), number_of(arguments, by)
    if save is None or evaluate is None or not is_known(arguments, "eval_steps") or min(save, evaluate) <= 0:
        return
    if _is_multiple(save, evaluate):
        return
    severity = severity_of(arguments, "save_steps", by)
    if by not in arguments and not is_plain(arguments, examples=False):  # TRL logs, and so evaluates, every 10 steps
        severity = Severity.WARNING
    path = next((f"$.{name}" for name in ("save_steps", by) if name in arguments), "$.load_best_model_at_end")
    message = f"`save_steps` {save:g} is no multiple of `{by}` {evaluate:g}: `load_best_model_at_end` is refused"
    whole = min(save, evaluate) >= 1
    fix = f"set `save_steps` to {ceil(save / evaluate) * evaluate:g}" if whole else "write both as shares, or as steps"
    if max(save, evaluate) < 1:
        fix = "save at a multiple of the evaluation's share"
    yield finding("DS308", path, message, fix=fix, severity=severity)


def _is_multiple(save: float, evaluate: float) -> bool:
    """As transformers counts; below 1 they are shares of all steps."""
    if save % evaluate == 0:
        return True
    return save < 1 and evaluate < 1 and (save * LARGE) % (evaluate * LARGE) == 0


def schedule_wants_evaluation(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    schedule = word_of(arguments, "lr_scheduler_type")
    if schedule in WANT_EVALUATION and word_of(arguments, "eval_strategy") == "no":
        message = f"`{schedule}` follows the evaluation, and `eval_strategy` is `no`: it is refused"
        severity = severity_of(arguments, "eval_strategy")
        fix = "set `eval_strategy` to steps or epoch"
        yield finding("DS308", "$.lr_scheduler_type", message, fix=fix, severity=severity)


def best_saves_want_a_metric(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    if word_of(arguments, "save_strategy") != "best" or not is_known(
        arguments, "metric_for_best_model", "load_best_model_at_end", "lr_scheduler_type"
    ):
        return
    metric = arguments.get("metric_for_best_model") is not None or is_on(arguments, "load_best_model_at_end")
    if not metric and word_of(arguments, "lr_scheduler_type") not in WANT_EVALUATION:
        message = "`best` wants a metric, and `metric_for_best_model` is not given: the Trainer refuses it"
        severity = severity_of(arguments, "metric_for_best_model")
        fix = "set `metric_for_best_model`, to loss for example"
        yield finding("DS308", "$.save_strategy", message, fix=fix, severity=severity)


def loader_settings_want_workers(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    if number_of(arguments, "dataloader_num_workers") != 0:
        return
    for name, bites in WANT_WORKERS.items():
        value = arguments.get(name)
        if value in (None, False, "false", "False") or not is_told(value):
            continue
        message = f"`{name}` without workers is refused: `dataloader_num_workers` is 0"
        severity = severity_of(arguments, "dataloader_num_workers")
        fix = "set `dataloader_num_workers` to 1 or more, or take it out"
        yield finding("DS308", f"$.{name}", message, fix=fix, severity=severity, bites=bites)


def numbers_are_in_range(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (least, bites) in AT_LEAST.items():
        number = number_of(arguments, name) if name in arguments else None
        if number is not None and (number < least or (name == "torch_empty_cache_steps" and number != int(number))):
            message = f"`{name}` {number:g} is refused: {least} is the least"
            yield finding("DS308", f"$.{name}", message, fix=f"write {least} or more", bites=bites)


def steps_are_whole(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """From 1 on they are steps, below they are shares of all steps."""
    for name, strategy in STEPS.items():
        number = number_of(arguments, name)
        if word_of(arguments, strategy) == "steps" and number is not None and number > 1 and number != int(number):
            message = f"`{name}` {number:g} is refused: above 1 it is a number of steps"
            yield finding("DS308", f"$.{name}", message, fix="write a whole number, or a share below 1")
    logs, logging = number_of(arguments, "logging_steps"), word_of(arguments, "logging_strategy")
    if logs is None or logs > 0:
        return
    evaluates = word_of(arguments, "eval_strategy") == "steps" and is_known(arguments, "eval_steps")
    if logs == 0 and logging == "steps":
        fix = "write 1 or more, or `logging_strategy` no"
        yield finding("DS308", "$.logging_steps", f"`logging_steps` {logs:g} is refused", fix=fix)
    elif evaluates and arguments.get("eval_steps") in (None, 0):
        message = f"`eval_strategy` steps without `eval_steps`, and `logging_steps` is {logs:g}: it is refused"
        yield finding("DS308", "$.eval_strategy", message, fix="set `eval_steps`")


RULES = (
    best_model_wants_one_strategy,
    schedule_wants_evaluation,
    best_saves_want_a_metric,
    loader_settings_want_workers,
    numbers_are_in_range,
    steps_are_whole,
)
