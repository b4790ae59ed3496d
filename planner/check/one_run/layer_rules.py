"""Classes of the model that a file names.

In: the files and the context. Out: Problems. Answers: has this model the layer that FSDP is to wrap, and the block that
ZeRO-3 is to take as one? Source: accelerate 1.15, utils/dataclasses.py `set_auto_wrap_policy` and
`set_moe_leaf_modules`: a name that no module of the model has raises in `prepare`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.check.context import Context
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.known_models import blocks_of, family_of_class, layers_of, type_of
from planner.check.one_run.run_facts import yaml_of
from planner.check.rules import finding, take_out, write
from planner.check.together import Together
from planner.errors import nearest
from planner.records.problem import Problem

WRAPPED = ("fsdp_config", "fsdp_transformer_layer_cls_to_wrap")
LEAVES = ("deepspeed_config", "deepspeed_moe_layer_cls_names")


def model_has_the_class(together: Together, context: Context) -> Iterator[Problem]:
    """A name that belongs to another family, or is one of this family with a slip; others may be code of its own."""
    yaml, model_type = yaml_of(together), type_of(context)
    if yaml is None or model_type is None:
        return
    for (block, key), own in ((WRAPPED, layers_of(model_type)), (LEAVES, _short(blocks_of(model_type)))):
        named = _names(section(yaml.fields, block).get(key))
        for name in named:
            family = family_of_class(name)
            if name in own or (family is None and not nearest(name, own, limit=1)):
                continue
            if family in (model_type, model_type.removesuffix("_text")):
                continue  # its layer where its block is asked for, or the other way round: a module it has
            path = f"$.{block}.{key}"
            whose = f"a class of `{family}` models" if family else "no class of transformers"
            message = f"`{name}` is {whose}, and the model is `{model_type}`: accelerate finds no such module"
            edits = take_out(path) if not own else write(path, ",".join(own)) if len(named) == 1 else ()
            fix = f"write {' or '.join(own)}" if own else "take it out"
            yield finding("DS419", path, message, fix=fix, file=yaml.name, edits=edits)


def _short(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.rpartition(".")[2] for name in names)


def _names(value: Any) -> list[str]:
    """Text with commas, as accelerate splits it, or a list."""
    parts = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else []
    return [name.strip() for name in parts if isinstance(name, str) and name.strip()]


RULES = (model_has_the_class,)
