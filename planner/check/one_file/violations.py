"""What a JSON Schema says against a document, alternatives resolved to the one that was meant.

In: a schema and a document. Out: violations. Answers: does the document have the schema's form, and where not? The
judgement is that of the package `jsonschema`; here its errors become records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import ValidationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One keyword that one value breaks; `value` is that value, `schema` the part of the schema that says so."""

    path: tuple[str | int, ...]
    keyword: str
    wanted: Any
    value: Any
    schema: Mapping[str, Any]


def violations(schema: Mapping[str, Any], document: Any) -> Iterator[Violation]:
    """Everything that is wrong with the document."""
    from jsonschema import Draft202012Validator

    incomplete: set[tuple[str | int, ...]] = set()
    for error in Draft202012Validator(schema).iter_errors(document):
        for violation in _meant(error):
            if violation.keyword == "required":  # jsonschema says it once for each missing key
                if violation.path in incomplete:
                    continue
                incomplete.add(violation.path)
            yield violation


def _meant(error: ValidationError) -> Iterator[Violation]:
    """One error; of alternatives that all fail, those of the one meant: of the value's type, furthest inside."""
    if error.validator == "anyOf" and error.context:
        options: dict[Any, list[Violation]] = {}
        for part in error.context:
            options.setdefault(part.schema_path[0], []).extend(_meant(part))
        yield from max(options.values(), key=_closeness)
        return
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    value, wanted = error.instance, error.validator_value
    if error.validator == "additionalProperties" and isinstance(value, Mapping):
        wanted = [key for key in value if key not in schema.get("properties", {})]
    path = tuple(error.absolute_path)
    yield Violation(path=path, keyword=str(error.validator), wanted=wanted, value=value, schema=schema)


def _closeness(found: list[Violation]) -> tuple[bool, int]:
    other_kind = found[0].keyword == "const" or (found[0].keyword == "type" and found[0].wanted == "null")
    depths = (len(violation.path) + (violation.keyword not in ("type", "const")) for violation in found)
    return not other_kind, max(depths)
