"""Keys that a section does not have.

In: the section's path, the key, and the schema. Out: one Problem. Answers: was the key removed, misspelt, put into the
wrong section, or made up, and does the reader notice? DeepSpeed's typed sections refuse it; everywhere else it is
ignored without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from planner.check.one_file.key_names import (
    FOREIGN,
    GENERAL,
    NOTE,
    OF_THE_LAUNCH,
    OF_THE_TRAINER,
    OLD_ACCELERATE_KEYS,
    ONLY_IN_JSON,
    ONLY_SHOWS,
    RARE_SECTIONS,
    REMOVED,
    REMOVED_IN,
    RENAMED,
    RENAMED_IN_YAML,
    TO_DECIDE,
    ZERO,
)
from planner.check.rules import finding, move, rename, take_out
from planner.errors import nearest
from planner.records.problem import Edit, Problem, Severity

A_SLIP = 0.8
"""From this likeness a stray key is taken for a misspelt one; what public files call their own lies below."""
LONG_ENOUGH = 6
A_FEW = 2
"""Letters by which a slip differs from the key that stands beside it: `optimiser`, not `eval_micro_batch_size`."""
JSON_TYPES = (
    (Mapping, ("object",)),
    (list, ("array",)),
    (str, ("string",)),
    (bool, ("boolean",)),
    (int, ("integer", "number", "boolean")),
    (float, ("number", "integer")),
)


def unknown_key(
    path: str, key: str, values: Mapping[str, Any], section: Mapping[str, Any], schema: Mapping[str, Any], name: str
) -> Problem:
    """The finding for one key that the section at `path` does not have.

    `values` is what the file has there, `section` the part of the schema for it, `name` the schema's name.
    """
    place, known = f"{path}.{key}", section.get("properties", {})
    if NOTE.match(key) and section.get("x-unknown-keys") != "refused" and name == "deepspeed":
        return finding("DS011", place, "a note; no program reads it", fix="leave it", severity=Severity.INFO)
    if name != "deepspeed":
        return _elsewhere(path, key, values, known, schema, name)
    if key in REMOVED_IN.get(path, ()):
        block = values.get(key)
        is_off = isinstance(block, Mapping) and block.get("enabled") in (None, False)
        gone = take_out(place) if is_off or key not in TO_DECIDE else ()
        return finding("DS012", place, f"`{key}` was removed from DeepSpeed", fix=REMOVED[key], edits=gone)
    replacement = RENAMED.get((path, key))
    if path == "$":
        stray = _stray(key, values, known)
        if stray is not None:
            return stray
    homes = [home for home in sections_with(schema, key) if home != path and not home.startswith(RARE_SECTIONS)]
    homes = [] if key in GENERAL else homes
    near = _nearest(key, values.get(key), known)
    if replacement is not None:
        hint = f"write {replacement}"
    elif homes:
        hint = f"move it to `{homes[0].removeprefix('$.')}`" if homes[0] != "$" else "move it to the top level"
    else:
        hint = f"did you mean `{near[0]}`?" if near else "take it out"
    if section.get("x-unknown-keys") == "refused":
        edits = _edits(path, key, values, replacement, homes, near, known) or take_out(place)
        return finding("DS010", place, f"`{path.removeprefix('$.')}` has no key `{key}`", fix=hint, edits=edits)
    is_slip = any(_is_almost(key, one) and (one not in values or _is_slip(key, one)) for one in near)
    likely_mistake = bool(homes or replacement) or is_slip
    message = f"no program reads `{key}` here, so it has no effect"
    severity = Severity.ERROR if likely_mistake else Severity.WARNING
    if homes and values.get(key) is not None and _default_at(schema, f"{homes[0]}.{key}") == values[key]:
        severity = Severity.WARNING  # it says what is so anyway
    if not likely_mistake and near and near[0] in values:
        hint = "take it out"
    edits = _edits(path, key, values, replacement, homes, near, known) if likely_mistake else ()
    return finding("DS011", place, message, fix=hint, severity=severity, edits=edits)


def _stray(key: str, values: Mapping[str, Any], known: Mapping[str, Any]) -> Problem | None:
    """A key at the top that has another name or another file, or holds what belongs one level higher."""
    place, message = f"$.{key}", f"no program reads `{key}` here, so it has no effect"
    inside, warning = values.get(key), Severity.WARNING
    home = FOREIGN.get(key)
    slip = any(_is_almost(key, other) for other in nearest(key, known, limit=1))
    if home is None and isinstance(inside, Mapping) and "stage" in inside and ZERO not in values and not slip:
        home = ZERO
    if home is not None:
        top = home.partition(".")[0]
        to_build = top not in values and top in ("optimizer", "scheduler")  # they need a type too
        there = _value_at(values, home)
        edits = () if to_build or there not in (None, inside) else move(place, f"$.{home}")
        edits = take_out(place) if there is not None and there == inside else edits
        changes_nothing = inside in (False, None, "none")
        severity = warning if changes_nothing else None
        return finding("DS011", place, message, fix=f"write `{home}`", severity=severity, edits=edits)
    if isinstance(inside, Mapping) and inside and all(name in known for name in inside):
        edits = tuple(edit for name in inside for edit in move(f"{place}.{name}", f"$.{name}"))
        edits = (*edits, *take_out(place)) if not any(name in values for name in inside) else ()
        severity = warning if all(name in ONLY_SHOWS for name in inside) else None
        fix = "move what it holds to the top level"
        return finding("DS011", place, message, fix=fix, severity=severity, edits=edits)
    if key in OF_THE_LAUNCH:
        fix = "move it to `deepspeed_config` of the Accelerate file"
        return finding("DS011", place, message, fix=fix, severity=warning)
    if key in OF_THE_TRAINER:
        fix = "give it to TrainingArguments or to `accelerate launch`"
        return finding("DS011", place, message, fix=fix, severity=warning)
    return None


def _value_at(values: Mapping[str, Any], home: str) -> Any:
    """What the document holds at a path like `zero_optimization.stage`; None where there is nothing."""
    inner: Any = values
    for part in home.split("."):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner


def _edits(
    path: str,
    key: str,
    values: Mapping[str, Any],
    replacement: str | None,
    homes: list[str],
    near: Sequence[str],
    known: Mapping[str, Any],
) -> tuple[Edit, ...]:
    """What mends a key without a question left: its right name, its one right place; where that is taken, it goes."""
    place = f"{path}.{key}"
    if replacement is not None:
        right = replacement.split("`")[1] if replacement.startswith("`") else ""
        if not right or right in values:
            return take_out(place)
        return move(place, f"{path}.{right}") if "." in right else rename(place, right)
    if homes:
        return move(place, f"{homes[0]}.{key}") if len(homes) == 1 else ()
    if not near:
        return ()
    if not _could_hold(known[near[0]], values.get(key)):
        return ()
    return take_out(place) if near[0] in values else rename(place, near[0])


def _nearest(key: str, value: Any, known: Mapping[str, Any]) -> list[str]:
    """The known key that is most like it, rather one that could hold the value."""
    near = nearest(key, known, limit=3)
    if near and near[0].startswith(key):
        return near[:1]
    return sorted(near, key=lambda name: not _could_hold(known[name], value))[:1]


def _could_hold(part: Mapping[str, Any], value: Any) -> bool:
    options = [one for one in part.get("anyOf", (part,)) if isinstance(one, Mapping)]
    given = (one.get("type", ()) for one in options)
    kinds = {kind for one in given for kind in ([one] if isinstance(one, str) else one)}
    if any("$ref" in one for one in options):
        kinds.add("object")
    if not kinds or value in (None, "auto"):
        return True
    return bool(kinds & {kind for python, found in JSON_TYPES for kind in found if isinstance(value, python)})


def _is_slip(key: str, known: str) -> bool:
    """Whether it is a beginning or an end of the known key, or differs by a few letters."""
    return letters_apart(key, known) <= A_FEW or known.startswith(key) or known.endswith(key)


def letters_apart(key: str, known: str) -> int:
    """How many letters are other ones, left out or added."""
    blocks = SequenceMatcher(None, key.casefold(), known.casefold()).get_opcodes()
    return sum(max(end - start, stop - begin) for tag, start, end, begin, stop in blocks if tag != "equal")


def _is_almost(key: str, known: str) -> bool:
    """Whether it is the known key with a slip or its beginning; less likeness is worth a hint, not an error."""
    shortened = len(key) >= LONG_ENOUGH and known.startswith(key)
    return shortened or SequenceMatcher(None, key.casefold(), known.casefold()).ratio() >= A_SLIP


def sections_with(schema: Mapping[str, Any], key: str) -> list[str]:
    """The paths of the sections that do have this key, shallow ones first."""
    homes = (path for path, properties in _sections(schema, schema, "$") if key in properties)
    return sorted(homes, key=lambda path: (path.count("."), path))


def _default_at(schema: Mapping[str, Any], path: str) -> Any:
    """The default of a key, None where the schema tells none."""
    home, _, key = path.rpartition(".")
    found = (
        properties[key] for place, properties in _sections(schema, schema, "$") if place == home and key in properties
    )
    return next((part.get("default") for part in found), None)


def _sections(schema: Mapping[str, Any], part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for option in (part, *part.get("anyOf", ())):
        section = schema["$defs"][option["$ref"].removeprefix("#/$defs/")] if "$ref" in option else option
        if "properties" in section:
            yield path, section["properties"]
            for key, value in section["properties"].items():
                yield from _sections(schema, value, f"{path}.{key}")


def _elsewhere(
    path: str,
    key: str,
    values: Mapping[str, Any],
    known: Mapping[str, Any],
    schema: Mapping[str, Any],
    name: str,
) -> Problem:
    place, near = f"{path}.{key}", _nearest(key, values.get(key), known)
    hint = f"did you mean `{near[0]}`?" if near else "take it out"
    if name != "accelerate":
        return finding("DS201", place, f"a {name} document has no key `{key}`", fix=hint)
    homes = [home for home in sections_with(schema, key) if home != path]
    slip = bool(near) and _is_almost(key, near[0])
    edits = _edits(path, key, values, None, [], near, known) if near else ()
    if path == "$.deepspeed_config" and key in RENAMED_IN_YAML:
        hint, edits = (
            f"write `{RENAMED_IN_YAML[key]}`",
            _edits(path, key, values, f"`{RENAMED_IN_YAML[key]}`", [], (), known),
        )
    elif homes and not slip:
        hint = "move it to the top level" if homes[0] == "$" else f"move it to `{homes[0].removeprefix('$.')}`"
        edits = _edits(path, key, values, None, homes, (), known)
    if path == "$":
        edits = take_out(place) if key in OLD_ACCELERATE_KEYS else edits
        return finding("DS110", place, f"accelerate knows no key `{key}`", fix=hint, edits=edits)
    message = f"nothing reads `{key}` in `{path.removeprefix('$.')}`"
    if "$" in homes:
        message = f"accelerate copies `{key}` out of `{path.removeprefix('$.')}` over the one at the top level"
    if key in ONLY_IN_JSON:
        return finding("DS111", place, message, fix="write a DeepSpeed file and name it in `deepspeed_config_file`")
    return finding("DS111", place, message, fix=hint, edits=edits or take_out(place))
