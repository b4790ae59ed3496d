"""Which settings the installed DeepSpeed and accelerate know, asked from themselves.

In: the installed packages. Out: names, types, ranges and defaults. Answers three questions: what does a pydantic model
of DeepSpeed hold, which keys of a plain dict does DeepSpeedConfig look up and with which default, and what may a
section of an Accelerate file set?
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

os.environ.setdefault("DS_ACCELERATOR", "cpu")

ABSENT = "no default"
SIMPLE = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
# Every plain section of a DeepSpeed file, empty: what DeepSpeedConfig looks up in them is what they may hold.
ALL_SECTIONS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "torch_autocast": {},
    "data_types": {},
    "activation_checkpointing": {},
    "flops_profiler": {},
    "autotuning": {"model_info": {}},
    "pipeline": {},
    "data_efficiency": {
        "data_sampling": {"curriculum_learning": {"enabled": False}, "dynamic_batching": {}},
        "data_routing": {"random_ltd": {"enabled": True}},
    },
    "checkpoint": {"writer": {}, "parallel_write": {}},
    "aio": {},
    "expert_parallel": {"enabled": False},
    "timers": {},
}


@dataclass(frozen=True)
class Field:
    """One key: the name, a second name, what JSON Schema says about the value, and the default."""

    name: str
    alias: str | None
    schema: dict[str, Any]
    default: Any
    section: str | None = None
    """The model of the section that the key holds."""
    deprecated: bool = False


def named(path: str) -> Any:
    """The object that `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def model_fields(path: str) -> Iterator[Field]:
    """The fields of one pydantic model of DeepSpeed."""
    for name, field in named(path).model_fields.items():
        schema, section = _of_annotation(field.annotation)
        target = next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)
        for constraint in field.metadata:
            target |= {BOUNDS[key]: getattr(constraint, key) for key in BOUNDS if hasattr(constraint, key)}
        default = field.get_default(call_default_factory=True)
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        yield Field(
            name, field.alias, schema, ABSENT if section else plain(default), section, bool(extra.get("deprecated"))
        )


def plain(value: Any) -> Any:
    """The value as JSON would hold it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return str(value) if isinstance(value, Path) else value


def _of_annotation(annotation: Any) -> tuple[dict[str, Any], str | None]:
    """What JSON Schema says about a Python type; for a model its path."""
    if get_origin(annotation) is Union:
        options = get_args(annotation)
        parts = [_of_annotation(option) for option in options if option is not type(None)]
        schemas, section = [schema for schema, _ in parts], next((section for _, section in parts if section), None)
        if type(None) not in options:
            return {"anyOf": schemas}, section
        if len(schemas) == 1 and isinstance(schemas[0].get("type"), str):
            return {**schemas[0], "type": [schemas[0]["type"], "null"]}, section
        return {"anyOf": [*schemas, {"type": "null"}]}, section
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}, None
    if get_origin(annotation) is list:
        return {"type": "array", "items": _of_annotation(get_args(annotation)[0])[0]}, None
    if get_origin(annotation) is dict:
        return {"type": "object"}, None
    if inspect.isclass(annotation) and hasattr(annotation, "model_fields"):
        return {}, f"{annotation.__module__}:{annotation.__name__}"
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return {"enum": list(dict.fromkeys(member.value for member in annotation))}, None
    if annotation is Path:
        return {"type": "string"}, None
    return ({"type": SIMPLE[annotation]} if annotation in SIMPLE else {}), None


class _Recorder(dict[str, Any]):
    """A dict that notes which keys it was asked for, and with which default."""

    def __init__(self, content: dict[str, Any], path: str, log: dict[str, dict[str, Any]]) -> None:
        self.path, self.log = path, log
        log.setdefault(path, {})
        inner = {k: _Recorder(v, f"{path}.{k}", log) if isinstance(v, dict) else v for k, v in content.items()}
        super().__init__(inner)

    def get(self, key: str, default: Any = None) -> Any:
        if self.log[self.path].get(key, ABSENT) == ABSENT:
            self.log[self.path][key] = ABSENT if default == {} else default
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.log[self.path].setdefault(key, ABSENT)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.log[self.path].setdefault(str(key), ABSENT)
        return super().__contains__(key)

    def keys(self) -> Any:
        return _Keys(self)

    def __copy__(self) -> _Recorder:
        return _Recorder(dict(self.items()), self.path, self.log)


class _Keys:
    """`keys()` of a recorder: a look-up in it is noted too."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder

    def __contains__(self, key: str) -> bool:
        return key in self.recorder

    def __iter__(self) -> Iterator[str]:
        return iter(dict.keys(self.recorder))


def recorded_reads() -> dict[str, dict[str, Any]]:
    """Path of a section to the keys that DeepSpeedConfig looks up there, with their defaults."""
    log: dict[str, dict[str, Any]] = {}
    named("deepspeed.runtime.config:DeepSpeedConfig")(_Recorder(ALL_SECTIONS, "$", log))
    log["$.optimizer.params"].clear()  # only warns about max_grad_norm
    return log


def record_fields(path: str) -> dict[str, Any]:
    """The fields of one dataclass of accelerate, with their defaults."""
    return {
        field.name: ABSENT if field.default is MISSING else plain(field.default)
        for field in fields(named(path))
        if field.name not in ("compute_environment",)
    } | {"compute_environment": ABSENT}


def launch_arguments() -> dict[str, dict[str, tuple[Any, list[str]]]]:
    """Group of `accelerate launch --help` to its arguments, with default and choices."""
    parser = named("accelerate.commands.launch:launch_command_parser")()
    groups: dict[str, dict[str, tuple[Any, list[str]]]] = {}
    for group in parser._action_groups:
        groups[str(group.title)] = {
            action.dest: (_flag(action.default), list(action.choices or ())) for action in group._group_actions
        }
    return groups


def _flag(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
