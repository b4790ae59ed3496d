"""The DeepSpeed schema says what the models of the installed DeepSpeed say: names, types, ranges and defaults."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from deepspeed_settings import MODELS, NOT_JSON, model_fields, named, sections

from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations

pytestmark = [pytest.mark.slow, pytest.mark.deepspeed]

AN_OBJECT_OF_THE_SCRIPT = {("tp", "mpu"), ("tp", "tp_group")}
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
# Ranges that validators of the models hold and no field declares.
VALIDATED = {("fp16", "loss_scale"): {"minimum": 0}, ("zenflow", "update_interval"): {"minimum": 1}}
BETWEEN_KEYS = [("zero_optimization", "compute_grad_norm", False)]  # refused without a stage that computes one


def plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def test_every_typed_field_has_its_names_default_and_range() -> None:
    pytest.importorskip("deepspeed")
    known, compared, bounds, wrong = sections(), 0, 0, []
    for section, name, field in model_fields():
        for key in filter(None, (name, field.alias)):
            schema = known[section]["properties"].get(key)
            if schema is None:
                wrong.append((section, key, "missing"))
                continue
            parts = [schema, *schema.get("anyOf", ())]
            if not any("$ref" in part for part in parts) and (section, name) not in AN_OBJECT_OF_THE_SCRIPT:
                default = plain(field.get_default(call_default_factory=True))
                if schema.get("default", "none") != default:
                    wrong.append((section, key, "default", default, schema.get("default")))
            declared = {
                word: getattr(c, own) for c in field.metadata for own, word in BOUNDS.items() if hasattr(c, own)
            }
            declared |= VALIDATED.get((section, name), {})
            found = {word: part[word] for part in parts for word in BOUNDS.values() if word in part}
            if declared != found:
                wrong.append((section, key, "range", declared, found))
            bounds += bool(declared)
        compared += 1
    assert wrong == []
    assert (compared, bounds) == (162, 26)


def test_every_field_of_every_model_is_accounted_for() -> None:
    """All 303: a section's, a name of a monitor at top level, or of `init_inference`, which reads no ds_config.json."""
    pytest.importorskip("deepspeed")
    importlib.import_module("deepspeed.inference.v2.engine_v2")
    base = named("deepspeed.runtime.config_utils.DeepSpeedConfigModel")
    counts = {f"{model.__module__}.{model.__name__}": len(model.model_fields) for model in subclasses(base)}
    typed = {name: counts.pop(name) for name in set(MODELS.values())}
    monitors = named("deepspeed.monitor.config.DeepSpeedMonitorConfig").model_fields
    assert set(monitors) <= set(sections()["document"]["properties"])
    assert counts.pop("deepspeed.monitor.config.DeepSpeedMonitorConfig") == len(monitors) == 4
    assert all(name.startswith("deepspeed.inference.") for name in counts), counts
    assert (sum(typed.values()), len(monitors), sum(counts.values())) == (158, 4, 141)
    assert 158 + 4 + 141 == 303


def subclasses(kind: type) -> Iterator[Any]:
    for inner in kind.__subclasses__():
        yield inner
        yield from subclasses(inner)


def test_typed_sections_have_no_other_keys() -> None:
    pytest.importorskip("deepspeed")
    known = sections()
    for section, path in MODELS.items():
        names = {n for key, f in named(path).model_fields.items() for n in (key, f.alias) if n}
        assert set(known[section]["properties"]) == names - {name for s, name in NOT_JSON if s == section}, section
        assert known[section]["x-unknown-keys"] == "refused"
    plain_ones = {name for name, section in known.items() if section.get("x-unknown-keys") == "ignored"}
    assert not plain_ones & set(MODELS)
    assert len(plain_ones) == 23


def edge_values(schema: dict[str, Any]) -> Iterator[Any]:
    """Values at and beside the limits of what the schema allows, none that pydantic would convert."""
    options = schema.get("anyOf", (schema,))
    for option in options:
        for word in BOUNDS.values():
            if word in option:
                yield from (option[word] - 1, option[word], option[word] + 1)
        yield from (member for member in option.get("enum", ()) if member is not None)
        if "enum" in option or "const" in option:
            yield from ("made up", "CPU", 17)
        kinds = option.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        yield from {
            "boolean": (True, False, "perhaps", 2),
            "integer": (0, 3, -1, 1.5, 5e8),
            "number": (0.5, 0, -1, 1.1),
        }.get(kinds[0] if kinds else "", ())
        yield from {"string": ("text", {}), "array": ([], ["a"], {}, 3), "object": ({}, [1], 3)}.get(
            kinds[0] if kinds else "", ()
        )
    yield from (None, [["nested"]])


def test_values_are_accepted_exactly_where_the_models_accept_them() -> None:
    """Each field of each model with values at its limits, by running the model."""
    pytest.importorskip("deepspeed")
    known, wrong, compared, refused = sections(), [], 0, 0
    definitions = load_schema("deepspeed")["$defs"]
    for section, name, field in model_fields():
        schema = known[section]["properties"][field.alias or name]
        if any("$ref" in part for part in (schema, *schema.get("anyOf", ()))):
            continue
        for value in edge_values(schema):
            if value == "auto" or (section, name) in AN_OBJECT_OF_THE_SCRIPT or (section, name, value) in BETWEEN_KEYS:
                continue
            try:
                named(MODELS[section])(**{name: value})
                accepted = True
            except (ValueError, AssertionError, TypeError):
                accepted = False
            part = {**known[section], "$defs": definitions}
            if (not list(violations(part, {name: value}))) is not accepted:
                wrong.append((section, name, value, accepted))
            compared += 1
            refused += not accepted
    assert wrong == []
    assert (compared, refused) == (1044, 628)
