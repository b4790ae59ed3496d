"""The DeepSpeed schema has the keys that DeepSpeed looks up in plain dicts, with the defaults that it takes."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest
from deepspeed_settings import model_fields, named, paths_of_sections, sections
from schema_cases import ROOT

from planner import toml
from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations

pytestmark = [pytest.mark.slow, pytest.mark.deepspeed]

# Constants NAME and NAME_DEFAULT by section: module and how the names begin.
CONSTANTS = (
    ("flops_profiler", "deepspeed.profiling.constants", "FLOPS_PROFILER_"),
    ("autotuning", "deepspeed.autotuning.constants", "AUTOTUNING_"),
    ("model_info", "deepspeed.autotuning.constants", "MODEL_INFO_"),
    ("aio", "deepspeed.runtime.swap_tensor.constants", "AIO_"),
    ("activation_checkpointing", "deepspeed.runtime.activation_checkpointing.config", "ACT_CHKPT_"),
    ("data_efficiency", "deepspeed.runtime.data_pipeline.constants", "DATA_EFFICIENCY_"),
    ("data_sampling", "deepspeed.runtime.data_pipeline.constants", "DATA_SAMPLING_"),
    ("curriculum_learning", "deepspeed.runtime.data_pipeline.constants", "CURRICULUM_LEARNING_"),
    ("dynamic_batching", "deepspeed.runtime.data_pipeline.constants", "DYNAMIC_BATCHING_"),
    ("data_routing", "deepspeed.runtime.data_pipeline.constants", "DATA_ROUTING_"),
    ("random_ltd", "deepspeed.runtime.data_pipeline.constants", "RANDOM_LTD_"),
    ("comms_logger", "deepspeed.comm.constants", "COMMS_LOGGER_"),
    ("checkpoint_writer", "deepspeed.runtime.model_checkpointing.constants", "CHECKPOINT_"),
    ("checkpoint", "deepspeed.runtime.constants", "CHECKPOINT_"),
    ("document", "deepspeed.runtime.constants", ""),
)
# Where a name begins like a section's and belongs to another one.
OTHER_SECTION = {
    "CHECKPOINT_TAG_VALIDATION": "checkpoint",
    "CHECKPOINT_SERIALIZATION": "checkpoint",
    "CHECKPOINT_WRITER": "checkpoint",
    "CHECKPOINT_PARALLEL_WRITE_PIPELINE_STAGE": "parallel_write",
    "LOAD_UNIVERSAL_CHECKPOINT": "checkpoint",
    "USE_NODE_LOCAL_STORAGE_CHECKPOINT": "checkpoint",
    "RANDOM_LTD_LAYER_TOKEN_LR_ENABLED": None,  # inside an open section
    "LEGACY_FUSION": "optimizer",
    **dict.fromkeys(("GRAD_ACCUM_DTYPE", "PARAM_DTYPE", "BUFFER_DTYPE", "KEEP_IN_FP32_MODULES"), "data_types"),
    "TORCH_AUTOCAST_ENABLED": "torch_autocast",
    "BFLOAT16_ENABLED": "bf16",
    "BFLOAT16_MASTER_WEIGHTS_AND_GRADS": "bf16",
    "BFLOAT16_OPTIMIZER_STATES": "bf16",
    "BFLOAT16_IMMEDIATE_GRAD_UPDATE": None,  # stale: true here, and false in the model that is read
    "DYNAMIC_BATCHING_MAX_BATCH_SIZE": None,  # left out it is None, but a null in the file raises
}
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")  # null: to be derived
REMOVED = {
    *("nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue"),
    *("sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning", "progressive_layer_drop"),
}


def test_plain_sections_have_the_keys_that_deepspeed_looks_up() -> None:
    """A dict that notes what is looked up in it, given to DeepSpeedConfig, sees every key and its default."""
    pytest.importorskip("deepspeed")
    from installed_fields import ABSENT, recorded_reads

    known, compared = sections(), 0
    paths = dict(paths_of_sections())
    for path, keys in recorded_reads().items():
        section = known[paths[path]]
        if not section.get("additionalProperties", True):
            missing = set(keys) - set(section["properties"]) - REMOVED
            assert not missing, (path, missing)
        for key, default in keys.items():
            schema = section["properties"].get(key, {})
            if default != ABSENT and "$ref" not in str(schema) and key not in ("datastates_ckpt", *BATCH):
                assert schema["default"] == default, (path, key)
            compared += 1
    assert compared == 187


def test_no_setting_is_left_to_the_table_alone() -> None:
    """Each key is a typed field, or DeepSpeedConfig looks it up, or the file that the table names mentions it."""
    pytest.importorskip("deepspeed")
    from installed_fields import recorded_reads

    paths = dict(paths_of_sections())
    looked_up = {(paths[path], key) for path, keys in recorded_reads().items() for key in keys}
    typed = {(section, key) for section, name, field in model_fields() for key in (name, field.alias) if key}
    every = {(name, key) for name, section in sections().items() for key in section.get("properties", ())}
    table = toml.loads((ROOT / "tests" / "oracles" / "schema_tables" / "deepspeed.toml").read_text(encoding="utf-8"))
    constants = vars(importlib.import_module("deepspeed.runtime.data_pipeline.constants"))
    found = 0
    for section, key in every - typed - looked_up:
        rows = table[section]
        if rows.get("open"):
            continue  # goes to a constructor as it is
        file = rows["keys"][key].get("elsewhere") or rows["elsewhere"]
        if file in ("editors", "nothing"):
            continue
        source = (Path(inspect.getfile(importlib.import_module(file.split("/")[0]))).parents[1] / file).read_text()
        names = [f'"{key}"', f"'{key}'", *(name for name, value in constants.items() if value == key)]
        assert any(name in source for name in names), (section, key, file)
        found += 1
    assert found == 33
    assert len(every & (typed | looked_up)) == 349


def test_removed_keys_are_those_that_deepspeed_names() -> None:
    pytest.importorskip("deepspeed")
    config = importlib.import_module("deepspeed.runtime.config")
    assert set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS) == REMOVED
    assert not REMOVED & set(sections()["document"]["properties"])
    assert not set(config._REMOVED_ZERO_CONFIG_KEYS) & set(sections()["zero_optimization"]["properties"])


def test_defaults_are_those_of_the_constants_modules() -> None:
    """Every pair NAME, NAME_DEFAULT of the modules of constants."""
    pytest.importorskip("deepspeed")
    known, seen = sections(), set()
    for section, module, prefix in CONSTANTS:
        constants = vars(importlib.import_module(module))
        for name, key in constants.items():
            if not name.startswith(prefix) or f"{name}_DEFAULT" not in constants or (module, name) in seen:
                continue
            if section == "document" and name.startswith(("FP16_", "CHECKPOINT_")):
                continue
            home = OTHER_SECTION.get(name, section)
            if home is None or key in BATCH:
                continue
            seen.add((module, name))
            schema = known[home]["properties"][key]
            if "$ref" not in str(schema) or "dtype" in str(schema):
                assert schema.get("default", "none") == constants[f"{name}_DEFAULT"], (module, name)
    assert len(seen) == 103


def test_defaults_are_those_of_a_configuration_that_says_nothing() -> None:
    pytest.importorskip("deepspeed")
    config = named("deepspeed.runtime.config.DeepSpeedConfig")({"train_micro_batch_size_per_gpu": 1})
    properties = sections()["document"]["properties"]
    skipped = {"vocabulary_size", *BATCH}  # read by a warning only
    skipped |= {"seq_parallel_communication_data_type", "use_data_before_expert_parallelism"}  # kept under other names
    keys = [key for key, schema in properties.items() if "default" in schema and key not in skipped]
    for key in keys:
        assert getattr(config, key) == properties[key]["default"], key
    assert len(keys) == 16
    assert str(config.seq_parallel_communication_data_type) == "torch.float32"
    assert properties["seq_parallel_communication_data_type"]["default"] == "fp32"


def test_expert_parallel_has_the_fields_and_defaults_of_its_record() -> None:
    pytest.importorskip("deepspeed")
    record = named("deepspeed.module_inject.auto_ep_config.AutoEPConfig")
    properties = sections()["expert_parallel"]["properties"]
    own = {field.name: field.default for field in fields(record) if not field.name.startswith("_")}
    assert set(properties) == set(own)
    unset = named("deepspeed.module_inject.auto_ep_config._UNSET")
    for key, default in own.items():
        assert properties[key].get("default", unset if key == "expert_w3" else None) == (
            None if key == "load_balance_coeff" else default
        )
    assert len(own) == 36


def test_expert_parallel_values_are_refused_as_deepspeed_refuses_them() -> None:
    pytest.importorskip("deepspeed")
    module = importlib.import_module("deepspeed.module_inject.auto_ep_config")
    words = {
        *(("preset_model", word) for word in (*module.PRESET_MODELS, "made up")),
        *(("expert_activation", word) for word in (*module.EXPERT_ACTIVATIONS, "made up")),
        *(("score_apply", word) for word in ("auto", "pre", "post", "made up")),
        *(("score_func", word) for word in ("auto", "softmax", "sigmoid", "made up")),
        *(("combine_impl", word) for word in ("auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm", "made up")),
        *(("gate_up_impl", word) for word in ("separate", "fused", "made up")),
        *(("num_expert_groups", number) for number in (0, 1)),
        *(("comm_num_sm", number) for number in (0, 1)),
        *(("comm_qp_margin", number) for number in (-1, 0)),
        *(("comm_max_tokens_per_rank", number) for number in (-1, 0)),
        ("load_balance_coeff", 0.1),
        ("routed_scaling_factor", "made up"),
    }
    for key, value in words:
        section = {"enabled": True, key: value}
        try:
            config = module.parse_autoep_config(section)
            module.validate_autoep_config(config, world_size=1, pp_size=1, tp_size=1, sp_size=1)
            accepted = True
        except ValueError:
            accepted = False
        assert (not list(violations(load_schema("deepspeed"), {"expert_parallel": section}))) is accepted, (key, value)
    assert len(words) == 38


def test_scheduler_parameters_are_those_of_the_constructors() -> None:
    pytest.importorskip("deepspeed")
    module = importlib.import_module("deepspeed.runtime.lr_schedules")
    names = {
        name
        for kind in module.VALID_LR_SCHEDULES
        for name in inspect.signature(getattr(module, kind)).parameters
        if name != "optimizer"
    }
    assert set(sections()["scheduler_params"]["properties"]) == names
    assert set(sections()["scheduler"]["properties"]["type"]["examples"]) == set(module.VALID_LR_SCHEDULES)


def test_auto_is_allowed_where_something_replaces_it() -> None:
    """The Trainer's code names what it fills; accelerate's prepare() fills a part of that, and the gather flag."""
    pytest.importorskip("transformers")
    from transformers.integrations import deepspeed as trainer

    source = inspect.getsource(trainer.HfTrainerDeepSpeedConfig)
    filled = set(re.findall(r'fill_(?:match|only)\(\s*"([a-z0-9_.]+)"', source)) | {"train_batch_size"}
    known = dict(paths_of_sections())
    allowed = {
        f"{path}.{key}".removeprefix("$.")
        for path, name in known.items()
        for key, schema in sections()[name]["properties"].items()
        if {"const": "auto"} in schema.get("anyOf", ())
    }
    open_to_all = {name for name in filled if name.startswith("scheduler.params.")}
    gather = "zero_optimization.stage3_gather_16bit_weights_on_model_save"  # filled by accelerate's prepare()
    own_values = {
        *("zero_optimization.zenflow.select_interval", "zero_optimization.zenflow.update_interval"),
        *("data_types.keep_in_fp32_modules", "expert_parallel.top_k", "expert_parallel.routed_scaling_factor"),
    }
    without_prefix = {
        f"zero_optimization.{name}"
        for name in ("prefetch_bucket_size", "param_persistence_threshold", "gather_16bit_weights_on_model_save")
    }
    assert allowed - own_values - without_prefix - {gather} == filled - open_to_all
    assert len(filled) == 17


def test_float_types_are_those_that_deepspeed_reads() -> None:
    pytest.importorskip("deepspeed")
    enum = named("deepspeed.runtime.config.DtypeEnum")
    floats = [word for kind in (enum.fp16, enum.bf16, enum.fp32) for word in kind._all_values if isinstance(word, str)]
    known = sections()
    assert set(known["dtype"]["enum"]) - {None} == set(floats)
    assert set(known["torch_autocast"]["properties"]["dtype"]["enum"]) == set(floats) - set(enum.fp32._all_values)
    assert len(floats) == 11
