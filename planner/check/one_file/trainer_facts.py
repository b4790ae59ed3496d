"""What a set of TrainingArguments says by itself.

In: the document, of a file or of the flags of a launch line. Out: values, with the defaults of transformers 5.24 where
they are not given; None where nobody can tell. Answers: what will the Trainer be given, and are its own defaults sure?
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from planner.check.one_file.training_names import NAMES
from planner.check.reading.arguments import REST, is_told
from planner.records.problem import Severity

DEFAULTS: dict[str, Any] = {
    "eval_strategy": "no",
    "save_strategy": "steps",
    "logging_strategy": "steps",
    "logging_steps": 500,
    "save_steps": 500,
    "lr_scheduler_type": "linear",
    "dataloader_num_workers": 0,
}
"""Source: transformers 5.24, TrainingArguments; a test compares them with the installed class."""
OLD_NAMES = {"eval_strategy": "evaluation_strategy"}
ON = (True, 1, "true", "True", "TRUE", "yes", "1")
EXAMPLES_TEXT = """
    model_name_or_path config_name tokenizer_name cache_dir use_fast_tokenizer model_revision token trust_remote_code
    torch_dtype dtype low_cpu_mem_usage dataset_name dataset_config_name train_file validation_file test_file
    max_train_samples max_eval_samples max_predict_samples streaming block_size overwrite_cache
    validation_split_percentage preprocessing_num_workers keep_linebreaks max_seq_length pad_to_max_length line_by_line
    source_prefix max_source_length max_target_length text_column summary_column source_lang target_lang num_beams
    task_name mlm_probability text_column_name label_column_name model_type config_overrides
"""
EXAMPLE_SCRIPTS = frozenset(EXAMPLES_TEXT.split())
"""Arguments that transformers' own example scripts take beside those of the Trainer, whose defaults they keep."""


def is_known(arguments: Mapping[str, Any], *names: str) -> bool:
    """Whether these values are known, those that are not given too: `"$@"` and `$EXTRA` may hold any."""
    given = [_given(arguments, name) for name in names]
    return all(is_told(value) for value in given) and not (None in given and REST in arguments)


def value_of(arguments: Mapping[str, Any], name: str) -> Any:
    """A value, or its default; None where it cannot be told."""
    if not is_known(arguments, name):
        return None
    given = _given(arguments, name)
    return DEFAULTS.get(name) if given is None else given


def number_of(arguments: Mapping[str, Any], name: str) -> float | None:
    """A finite number, or the default; None for everything else, texts too."""
    value = value_of(arguments, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return value


def is_on(arguments: Mapping[str, Any], name: str) -> bool:
    """Whether a switch is on."""
    value = arguments.get(name)
    return isinstance(value, (bool, int, str)) and value in ON


def is_plain(arguments: Mapping[str, Any], *, examples: bool = True) -> bool:
    """Whether nothing but the Trainer's arguments is there, and those of transformers' own scripts."""
    return set(arguments) <= NAMES | {REST} | (EXAMPLE_SCRIPTS if examples else frozenset())


def severity_of(arguments: Mapping[str, Any], *decisive: str) -> Severity:
    """Other programs have defaults of their own: sure is what is written, or what has only the Trainer's."""
    written = all(_given(arguments, name) is not None for name in decisive)
    return Severity.ERROR if written or is_plain(arguments) else Severity.WARNING


def _given(arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)
    return arguments.get(OLD_NAMES[name]) if value is None and name in OLD_NAMES else value
