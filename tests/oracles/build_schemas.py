"""Builds schemas/deepspeed.schema.json and schemas/accelerate.schema.json from the installed packages and two tables.

    python tests/oracles/build_schemas.py --check     # says what differs, exits 1 if anything does
    python tests/oracles/build_schemas.py --write

Names, types, ranges, choices and defaults come from the packages themselves (installed_fields.py); sentences, ranges
of plain values and what the packages do not say come from schema_tables/*.toml. A key that only one of both knows
stops the build: after an update of DeepSpeed or accelerate it names the rows to add or to take out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from installed_fields import ABSENT, Field, launch_arguments, model_fields, named, record_fields, recorded_reads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # a bare checkout is on no path before this line

from planner import toml  # noqa: E402
from planner.version import TARGET_VERSIONS  # noqa: E402

SCHEMAS = HERE.parents[1] / "schemas"
VERSIONS = {name: TARGET_VERSIONS[name] for name in ("deepspeed", "accelerate")}
LINE = 118
OURS = {
    *("about", "auto", "default", "default_null", "elsewhere", "flag", "float_dtype"),
    *("no_default", "nullable", "nullable_default", "or_boolean", "or_integer", "or_string", "sagemaker", "section"),
    *("words", "words_of"),
}
FLOATS = ("fp16", "float16", "half", "torch.float16", "bf16", "bfloat16", "torch.bfloat16")
FLOATS += ("fp32", "float32", "float", "torch.float32")
TRUTH = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")  # accelerate str_to_bool

Row = Mapping[str, Any]
Table = dict[str, dict[str, Any]]


class Disagreement(Exception):
    """The tables and the installed package do not know the same keys."""


def build(name: str) -> str:
    """The text of one schema file."""
    table = toml.loads((HERE / "schema_tables" / f"{name}.toml").read_text(encoding="utf-8"))
    sections = deepspeed_sections(table) if name == "deepspeed" else accelerate_sections(table)
    document = sections.pop("document")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": {"deepspeed": "DeepSpeed configuration", "accelerate": "Accelerate configuration"}[name],
        "$comment": f"Built from {name} {VERSIONS[name]} by tests/oracles/build_schemas.py; not edited by hand.",
    }
    if name == "deepspeed":
        sections["dtype"] = {"enum": [*FLOATS, None]}
    else:
        sections["flag"] = {"type": ["boolean", "integer", "string"], "minimum": 0, "maximum": 1}
        sections["flag"] |= {"pattern": any_case(TRUTH), "examples": ["true", "false"]}
    return text_of({**head, **document, "$defs": dict(sorted(sections.items()))}) + "\n"


def deepspeed_sections(table: Table) -> dict[str, Any]:
    """The document and every section of a DeepSpeed file."""
    reads = recorded_reads()
    by_model = {rows["model"]: name for name, rows in table.items() if "model" in rows and name != "bfloat16"}
    sections: dict[str, Any] = {}
    for name, rows in table.items():
        keys = {key: row if isinstance(row, dict) else {"about": row} for key, row in rows["keys"].items()}
        if "model" in rows:
            found = [field for field in model_fields(rows["model"]) if field.name not in rows.get("left_out", {})]
            compare(name, {field.name for field in found}, set(keys))
            properties = {}
            for field in found:
                section = by_model[field.section] if field.section else None
                properties |= spellings(field, keys[field.name], section)
            section_schema = closed(rows, properties)
            pairs = [[field.alias, field.name] for field in found if field.alias]
            if pairs:
                section_schema["allOf"] = [{"not": {"required": pair}} for pair in pairs]
        else:
            known = reads[rows["reads"]] if "reads" in rows else {}
            own = {key for key, row in keys.items() if "elsewhere" not in row}
            if "reads" in rows:
                compare(name, set(known) - set(rows.get("removed", ())), own)
            properties = {key: value_schema(row, known.get(key, ABSENT)) for key, row in keys.items()}
            section_schema = closed(rows, properties)
        sections[name] = section_schema
    return sections


def accelerate_sections(table: Table) -> dict[str, Any]:
    """The document and every section of an Accelerate file."""
    groups = launch_arguments()
    everything = {key: found for group in groups.values() for key, found in group.items()}
    sections: dict[str, Any] = {}
    for name, rows in table.items():
        keys: dict[str, Row] = rows["keys"]
        if "records" in rows:
            defaults: dict[str, Any] = {}
            for path in reversed(rows["records"]):
                defaults |= record_fields(path)
            known = {key: (value, []) for key, value in defaults.items()}
        elif "group" in rows:
            known = groups[rows["group"]]
        else:
            known = {key: found for key, found in everything.items() if key.startswith(rows["arguments"])}
        compare(name, set(known), {key for key, row in keys.items() if "elsewhere" not in row})
        properties = {}
        for key, row in keys.items():
            default, choices = known.get(key, (ABSENT, []))
            row = row if not choices or {"words", "words_of", "enum"} & set(row) else {**row, "enum": choices}
            found = value_schema(row, ABSENT if default is None and "nullable" not in row else default)
            properties[key] = found
            if "short" in rows and key.startswith(rows["short"]):
                properties[key.removeprefix(rows["short"])] = {**found, "description": f"Short for {key}."}
        sections[name] = closed({**rows, "unknown": "refused" if name == "document" else "ignored"}, properties)
    sections["document"] |= sagemaker(table["document"]["keys"])
    there = {"compute_environment": {"const": "AMAZON_SAGEMAKER"}}
    sections["sagemaker"] = {"properties": there, "required": ["compute_environment"]}
    return sections


def sagemaker(keys: Mapping[str, Row]) -> dict[str, Any]:
    """SageMaker's keys and ways of working are for SageMaker only."""
    there = {"$ref": "#/$defs/sagemaker"}
    own = [member.value for member in named("accelerate.utils.dataclasses:SageMakerDistributedType")]
    here = [member.value for member in named("accelerate.utils.dataclasses:DistributedType")]
    required = ["ec2_instance_type", "iam_role_name"]
    return {
        "dependentSchemas": {key: there for key, row in keys.items() if "sagemaker" in row},
        "if": there,
        "then": {"properties": {"distributed_type": {"enum": own}}, "required": required},
        "else": {"properties": {"distributed_type": {"enum": here}}},
    }


def compare(section: str, installed: set[str], rows: set[str]) -> None:
    """Raises Disagreement where the installed package and the table do not know the same keys."""
    if installed != rows:
        new, gone = sorted(installed - rows), sorted(rows - installed)
        raise Disagreement(f"[{section}]: only the installed package knows {new}, only the table knows {gone}")


def closed(rows: Row, properties: dict[str, Any]) -> dict[str, Any]:
    """A section that refuses unknown keys, or an open one for what goes to a constructor."""
    section: dict[str, Any] = {"description": rows["about"], "type": "object"}
    if not rows.get("open"):
        section["additionalProperties"] = False
        section["x-unknown-keys"] = rows["unknown"]
    if "required" in rows:
        section["required"] = rows["required"]
    return {**section, "properties": properties, **rows.get("also", {})}


def spellings(field: Field, row: Row, section: str | None) -> dict[str, Any]:
    """One field of a pydantic model under its names."""
    rest = {key: value for key, value in row.items() if key not in OURS}
    if section:
        reference = {"$ref": f"#/$defs/{section}"}
        nullable = "anyOf" in field.schema
        schema = {"anyOf": [reference, {"type": "null"}]} if nullable else dict(reference)
    else:
        schema = {**field.schema, **rest}
        if "enum" in rest:
            schema.pop("type", None)
        if field.deprecated:
            schema["deprecated"] = True
    if row.get("or_string"):
        schema = {"anyOf": [schema, {"type": "string"}]}
    found = finished(row, schema, ABSENT if row.get("no_default") else field.default)
    if not field.alias:
        return {field.name: found}
    return {
        field.alias: found,
        field.name: {**found, "description": f"The same as {field.alias}; only one may be given."},
    }


def value_schema(row: Row, default: Any) -> dict[str, Any]:
    """One key that a table describes."""
    if "section" in row and "or_boolean" not in row:
        reference = {"$ref": f"#/$defs/{row['section']}"}
        return {"anyOf": [reference, {"type": "null"}]} if row.get("nullable") else reference
    schema: dict[str, Any] = {key: value for key, value in row.items() if key not in OURS}
    if "section" in row:
        schema = {"anyOf": [{"$ref": f"#/$defs/{row['section']}"}, {"type": "boolean"}]}
        default = ABSENT
    if row.get("float_dtype"):
        schema["$ref"] = "#/$defs/dtype"
    if row.get("flag"):
        schema["$ref"] = "#/$defs/flag"
    words = row.get("words") or ([member.value for member in named(row["words_of"])] if "words_of" in row else None)
    if words:
        schema |= {"type": "string", "pattern": any_case(words), "examples": list(words)}
    if row.get("or_integer"):
        low, high = row["or_integer"]
        schema |= {"type": ["string", "integer"], "minimum": low, "maximum": high}
    if row.get("nullable"):
        schema = nullable(schema)
    if "default" in row:
        default = row["default"]
    elif row.get("no_default"):
        default = ABSENT
    elif row.get("default_null"):
        default = None
    return finished(row, schema, default)


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, null allowed too."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*kinds, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def finished(row: Row, schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """Sentence first, "auto" where it is replaced, the default last."""
    if row.get("auto"):
        schema = {"anyOf": [schema, {"const": "auto"}]}
    found = {"description": row["about"], **schema}
    allowed_null = not row.get("nullable_default")  # a key that has to be there, or is derived: null is no value for it
    if default != ABSENT and (default is not None or allowed_null):
        found["default"] = default
    return found


def any_case(words: Any) -> str:
    """A pattern for these words in any case; JSON Schema has no flag for it."""

    def letters(word: str) -> str:
        return "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in word)

    return "^(" + "|".join(letters(word) for word in words) + ")$"


def text_of(value: Any, indent: int = 0) -> str:
    """JSON with what fits on a line on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, dict) and ("properties" in value or indent < 2)
    if not nested and (indent + len(flat) <= LINE or not isinstance(value, (dict, list)) or is_leaf(value)):
        return flat
    pad, end = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key)}: {text_of(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + text_of(item, indent + 1) for item in value) + f"\n{end}]"


def is_leaf(value: Any) -> bool:
    """Whether this is one key's schema, which stays on one line however long its sentence."""
    return isinstance(value, dict) and "description" in value and "properties" not in value


def differences() -> Iterator[str]:
    """What is not as it should be, a line each."""
    for name, wanted in VERSIONS.items():
        if version(name) != wanted:
            yield f"{name} {version(name)} is installed, and the tables are written for {wanted}"
        path = SCHEMAS / f"{name}.schema.json"
        try:
            if path.read_text(encoding="utf-8") != build(name):
                yield f"{path.name} is not what {name} {version(name)} and the table say: run --write"
        except Disagreement as error:
            yield f"schema_tables/{name}.toml {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="compare, and exit 1 where something differs")
    mode.add_argument("--write", action="store_true", help="write both files")
    if parser.parse_args().write:
        for name in VERSIONS:
            (SCHEMAS / f"{name}.schema.json").write_text(build(name), encoding="utf-8")
        return 0
    found = list(differences())
    print("\n".join(found) or "both schemas are what the installed packages and the tables say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
