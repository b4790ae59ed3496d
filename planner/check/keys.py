"""Keys that a section does not have.

In: the section's path, the key, and the schema. Out: one Problem. Answers: was the key removed, misspelt, put into the
wrong section, or made up, and does the reader notice? DeepSpeed's typed sections refuse it; everywhere else it is
ignored without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from planner.check.rules import finding
from planner.errors import nearest
from planner.records.problem import Problem, Severity

# Removed before DeepSpeed 0.19.8; the mere presence raises DeepSpeedConfigError, even with "enabled": false.
REMOVED = {
    **dict.fromkeys(
        ("nebula", "compression_training", "sparse_gradients", "eigenvalue", "sparse_attention"), "take it out"
    ),
    **dict.fromkeys(("elasticity", "graph_harvesting", "progressive_layer_drop", "quantize_training"), "take it out"),
    "amp": "use `bf16` or `torch_autocast`",
    "curriculum_learning": "move it to `data_efficiency.data_sampling.curriculum_learning`",
    "mics_shard_size": "use `zero_hpz_partition_size` at stage 3",
    "mics_hierarchical_params_gather": "take it out",
    "zeropp_loco_param": "take it out",
}
REMOVED_IN = {"$": set(REMOVED) - {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}}
REMOVED_IN["$.zero_optimization"] = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}

# Large sections that few files have: that a stray key also exists there says nothing about what was meant.
RARE_SECTIONS = ("$.autotuning", "$.data_efficiency", "$.expert_parallel")
A_SLIP = 0.8
"""From this likeness a stray key is taken for a misspelt one; what public files call their own lies below."""
LONG_ENOUGH = 6
RENAMED = {
    ("$.aio", "thread_count"): "`intra_op_parallelism`",
    ("$", "load_universal_checkpoint"): "`checkpoint.load_universal`",
    ("$.tensor_parallel", "tp_size"): "`autotp_size`",
    ("$.tensor_parallel", "enabled"): "nothing: `autotp_size` above 1 switches it on",
    ("$.activation_checkpointing", "enabled"): "nothing: Hugging Face models use `gradient_checkpointing=True`",
}


def unknown_key(
    path: str, key: str, section: Mapping[str, Any], schema: Mapping[str, Any], schema_name: str
) -> Problem:
    """The finding for one key that the section at `path` does not have; `section` is the part of the schema for it."""
    place, known = f"{path}.{key}", section.get("properties", {})
    if schema_name != "deepspeed":
        return _elsewhere(place, path, key, known, schema_name)
    if key in REMOVED_IN.get(path, ()):
        return finding("DS012", place, f"`{key}` was removed from DeepSpeed", fix=REMOVED[key])
    replacement = RENAMED.get((path, key))
    homes = [home for home in sections_with(schema, key) if home != path and not home.startswith(RARE_SECTIONS)]
    near = nearest(key, known, limit=1)
    if replacement is not None:
        hint = f"write {replacement}"
    elif homes:
        hint = f"move it to `{homes[0].removeprefix('$.')}`" if homes[0] != "$" else "move it to the top level"
    else:
        hint = f"did you mean `{near[0]}`?" if near else "take it out"
    if section.get("x-unknown-keys") == "refused":
        return finding("DS010", place, f"`{path.removeprefix('$.')}` has no key `{key}`", fix=hint)
    likely_mistake = bool(homes or replacement) or any(_is_almost(key, other) for other in near)
    message = f"no program reads `{key}` here, so it has no effect"
    return finding("DS011", place, message, fix=hint, severity=Severity.ERROR if likely_mistake else Severity.WARNING)


def _is_almost(key: str, known: str) -> bool:
    """Whether it is the known key with a slip or its beginning; less likeness is worth a hint, not an error."""
    shortened = len(key) >= LONG_ENOUGH and known.startswith(key)
    return shortened or SequenceMatcher(None, key.casefold(), known.casefold()).ratio() >= A_SLIP


def sections_with(schema: Mapping[str, Any], key: str) -> list[str]:
    """The paths of the sections that do have this key, shallow ones first."""
    homes = (path for path, properties in _sections(schema, schema, "$") if key in properties)
    return sorted(homes, key=lambda path: (path.count("."), path))


def _sections(schema: Mapping[str, Any], part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for option in (part, *part.get("anyOf", ())):
        section = schema["$defs"][option["$ref"].removeprefix("#/$defs/")] if "$ref" in option else option
        if "properties" in section:
            yield path, section["properties"]
            for key, value in section["properties"].items():
                yield from _sections(schema, value, f"{path}.{key}")


def _elsewhere(place: str, path: str, key: str, known: Iterable[str], schema_name: str) -> Problem:
    near = nearest(key, known, limit=1)
    hint = f"did you mean `{near[0]}`?" if near else "take it out"
    if schema_name == "accelerate" and path == "$":
        return finding("DS110", place, f"accelerate knows no key `{key}`", fix=hint)
    if schema_name == "accelerate":
        return finding("DS111", place, f"nothing reads `{key}` in `{path.removeprefix('$.')}`", fix=hint)
    return finding("DS201", place, f"a {schema_name} document has no key `{key}`", fix=hint)
