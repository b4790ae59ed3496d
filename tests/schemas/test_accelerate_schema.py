"""The Accelerate schema says what the installed accelerate says: keys, choices and defaults, one by one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from typing import Any

import pytest

from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations

pytestmark = [pytest.mark.slow, pytest.mark.accelerate]

SECTIONS = {
    "deepspeed_config": "deepspeed",
    "fsdp_config": "fsdp",
    "parallelism_config": "parallelism",
    "megatron_lm_config": "megatron_lm",
    "fp8_config": "fp8",
    "mpirun_config": "mpirun",
    "dynamo_config": "dynamo",
}
PREFIXES = {"fsdp": "fsdp_", "fp8": "fp8_", "dynamo": "dynamo_"}
READ_BESIDES = {
    "fsdp": {"fsdp_ignored_modules"},  # utils/launch.py asks for it, although no argument has the name
    "fp8": {"amax_compute_algorithm", "amax_history_length", "optimization_level"},  # written and never read
}
MISSPELT = "torhchxla_trace_once"  # a choice that the launcher itself then refuses
LEGACY = {"fp16", "dynamo_backend"}  # BaseConfig.process_config


def module(name: str) -> Any:
    pytest.importorskip("accelerate")
    return importlib.import_module(f"accelerate.{name}")


def properties(section: str) -> dict[str, Any]:
    schema = load_schema("accelerate")
    found: dict[str, Any] = (schema if section == "document" else schema["$defs"][section])["properties"]
    return found


def test_top_level_keys_and_defaults_are_those_of_the_two_records() -> None:
    config = module("commands.config.config_args")
    compared = 0
    names = set(LEGACY)
    for record in (config.SageMakerConfig, config.ClusterConfig):
        for field in dataclasses.fields(record):
            names.add(field.name)
            known = properties("document")[field.name]
            if field.default is not dataclasses.MISSING and field.default is not None and "$ref" not in str(known):
                sagemaker_only = record is config.SageMakerConfig and hasattr(config.ClusterConfig, field.name)
                assert sagemaker_only or known["default"] == field.default, field.name
            compared += 1
    assert set(properties("document")) == names
    assert compared == 52
    assert load_schema("accelerate")["x-unknown-keys"] == "refused"


def arguments() -> dict[str, Any]:
    parser = module("commands.launch").launch_command_parser()
    return {action.dest: action for action in parser._actions}


def test_nested_keys_are_arguments_of_the_launcher_with_their_defaults() -> None:
    """The launcher copies a nested key onto the argument of its name, with or without the section's prefix."""
    known, compared = arguments(), 0
    for section in SECTIONS.values():
        prefix = PREFIXES.get(section, "")
        for key, schema in properties(section).items():
            name = key if key.startswith(prefix) else prefix + key
            if {key, name} & READ_BESIDES.get(section, set()):
                continue
            assert name in known, (section, key)
            default = {"true": True, "false": False}.get(known[name].default, known[name].default)
            if default is not None and "default" in schema:
                assert str(schema["default"]) == str(default), key
            assert default is None or "default" in schema or name == "fp8_override_linear_precision", key
            choices = known[name].choices
            if choices and "enum" in schema:
                assert {str(item) for item in schema["enum"]} == {str(item) for item in choices}, key
            for word in set(choices or ()) - {MISSPELT}:
                assert not list(violations({**schema, "$defs": load_schema("accelerate")["$defs"]}, word)), (key, word)
            compared += 1
    assert compared == 116


def test_no_argument_of_a_section_is_left_out() -> None:
    """Every argument that utils/launch.py reads for a plugin is a key of its section."""
    source = inspect.getsource(module("utils.launch"))
    read = set(re.findall(r"\bargs\.([a-z0-9_]+)", source))
    missing = set()
    for section, begin in {
        "fsdp": "fsdp_",
        "parallelism": "parallelism_config_",
        "megatron_lm": "megatron_lm_",
        "mpirun": "mpirun_",
        "dynamo": "dynamo_",
    }.items():
        missing |= {name for name in read if name.startswith(begin)} - set(properties(section))
    deepspeed = {name for name in read if name.startswith(("deepspeed_", "zero", "offload_", "gradient_"))}
    missing |= deepspeed - set(properties("deepspeed")) - {"deepspeed_fields_from_accelerate_config"}
    assert missing == set()
    assert len(read) == 107


def test_the_deepspeed_section_has_what_the_plugin_reads() -> None:
    """Environment variables of DeepSpeedPlugin, and the keys that it refuses beside a file."""
    plugin = module("utils.dataclasses").DeepSpeedPlugin
    source = inspect.getsource(plugin.__post_init__)
    variables = set(re.findall(r'"ACCELERATE_(?:DEEPSPEED_)?([A-Z0-9_]+)"', source)) | set(
        re.findall(r'env_prefix \+ "([A-Z0-9_]+)"', source)
    )
    names = {variable.lower() for variable in variables}
    known = set(properties("deepspeed"))
    spellings = {
        "zero3_init": "zero3_init_flag",
        "config_file": "deepspeed_config_file",
        "moe_layer_cls_names": "deepspeed_moe_layer_cls_names",
    }
    theirs = {spellings.get(name, name) for name in names}
    assert {"zero_stage", "gradient_clipping", "offload_param_device"} <= theirs
    assert theirs - known <= {"fp8_backend", "fp8_opt_level", "config_ds_fields", "mixed_precision", "use_deepspeed"}
    plain = plugin()  # the defaults of a file that says nothing
    assert properties("deepspeed")["zero_stage"]["default"] == plain.zero_stage
    for name in ("offload_optimizer_device", "offload_param_device"):
        assert properties("deepspeed")[name]["default"] == str(getattr(plain, name))


def test_words_are_accepted_where_the_plugin_accepts_them() -> None:
    constants = module("utils.constants")
    dataclass_module = module("utils.dataclasses")
    definitions = load_schema("accelerate")["$defs"]
    lists = {
        ("fsdp", "fsdp_sharding_strategy"): constants.FSDP_SHARDING_STRATEGY,
        ("fsdp", "fsdp_auto_wrap_policy"): constants.FSDP_AUTO_WRAP_POLICY,
        ("fsdp", "fsdp_backward_prefetch"): constants.FSDP_BACKWARD_PREFETCH,
        ("fsdp", "fsdp_state_dict_type"): constants.FSDP_STATE_DICT_TYPE,
        ("dynamo", "dynamo_backend"): [member.value for member in dataclass_module.DynamoBackend],
        ("deepspeed", "deepspeed_multinode_launcher"): constants.DEEPSPEED_MULTINODE_LAUNCHERS,
    }
    compared = 0
    for (section, key), words in lists.items():
        part = {**definitions[section], "$defs": definitions}
        for word in words:
            any_case = (word, word.lower()) if section != "deepspeed" else (word,)
            assert not [found for spelling in any_case for found in violations(part, {key: spelling})], (key, word)
            compared += 1
        assert list(violations(part, {key: "made up"}))
        pattern = properties(section)[key].get("pattern", "")
        offered = properties(section)[key].get("examples") or properties(section)[key]["enum"]
        assert {str(item) for item in offered if item is not None} == set(words), (key, pattern)
    assert compared == 37


def test_truth_is_what_str_to_bool_reads() -> None:
    str_to_bool = module("utils.environment").str_to_bool
    part = {"$ref": "#/$defs/flag", "$defs": load_schema("accelerate")["$defs"]}
    words = (
        "y",
        "yes",
        "t",
        "true",
        "on",
        "1",
        "n",
        "no",
        "f",
        "false",
        "off",
        "0",
        "True",
        "NO",
        "perhaps",
        "2",
        "none",
    )
    for word in words:
        try:
            str_to_bool(word)
            accepted = True
        except ValueError:
            accepted = False
        assert (not list(violations(part, word))) is accepted, word
    assert not list(violations(part, True))
    assert len(words) == 17


def test_ways_of_working_together_are_those_of_the_enums() -> None:
    dataclass_module = module("utils.dataclasses")
    schema = load_schema("accelerate")
    here = {member.value for member in dataclass_module.DistributedType}
    there = {member.value for member in dataclass_module.SageMakerDistributedType}
    assert set(schema["else"]["properties"]["distributed_type"]["enum"]) == here
    assert set(schema["then"]["properties"]["distributed_type"]["enum"]) == there
    assert set(properties("document")["mixed_precision"]["enum"]) - {None} == {
        member.value for member in dataclass_module.PrecisionType
    }
    record = module("commands.config.config_args")
    cluster = {field.name for field in dataclasses.fields(record.ClusterConfig)}
    only = {field.name for field in dataclasses.fields(record.SageMakerConfig)} - cluster
    assert set(schema["dependentSchemas"]) == only


def test_what_accelerate_config_writes_is_known() -> None:
    """The questionnaire of `accelerate config` writes keys by name: none of them is unknown here."""
    tree = ast.parse(inspect.getsource(module("commands.config.cluster")))
    written = {
        (node.value.id, node.slice.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    }
    compared = 0
    for section, key in sorted(written):
        if section in SECTIONS:
            assert key in properties(SECTIONS[section]), (section, key)
            compared += 1
    assert compared == 40
