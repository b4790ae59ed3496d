"""Findings as SARIF 2.1.0, the form that code hosts and editors show beside the lines.

In: a CheckResult and the folder that paths are relative to. Out: the document. Same findings, same bytes.
Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from planner.check import CheckResult, as_dict
from planner.check.pages import as_markdown, as_text, page
from planner.records.problem import Problem, Severity
from planner.version import VERSION

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif(result: CheckResult, *, folder: str = ".") -> dict[str, Any]:
    """One run of dsplan, with the rules that were broken and where."""
    broken = sorted({problem.rule for problem in result.findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "dsplan", "version": VERSION, "rules": [_rule(rule) for rule in broken]}},
                "columnKind": "unicodeCodePoints",
                "artifacts": [{"location": {"uri": uri_of(name, folder)}} for name, _ in result.files],
                "results": [_result(problem, broken, folder) for problem in result.findings],
            }
        ],
    }


def _rule(rule: str) -> dict[str, Any]:
    known = page(rule)
    return {
        "id": rule,
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": known.about},
        "help": {"text": as_text(known), "markdown": as_markdown(known)},
        "defaultConfiguration": {"level": LEVELS[Severity(known.severity)]},
        "properties": {"bites": known.bites, "tags": ["configuration", "deepspeed"]},
    }


def _result(problem: Problem, broken: list[str], folder: str) -> dict[str, Any]:
    place = {
        "artifactLocation": {"uri": uri_of(problem.file, folder)},
        "region": {"startLine": max(1, problem.line), "startColumn": max(1, problem.column)},
    }
    return {
        "ruleId": problem.rule,
        "ruleIndex": broken.index(problem.rule),
        "level": LEVELS[problem.severity],
        "message": {"text": f"{problem.message}; fix: {problem.fix}"},
        "locations": [
            {"physicalLocation": place, "logicalLocations": [{"fullyQualifiedName": problem.path, "kind": "member"}]}
        ],
        "properties": {"bites": as_dict(problem)["bites"]},
    }


def uri_of(name: str, folder: str) -> str:
    """A relative URI, with slashes on every system."""
    try:
        relative = os.path.relpath(name, folder)
    except ValueError:  # another drive
        relative = os.path.abspath(name)
    return quote(os.fsencode(relative.replace(os.sep, "/")))
