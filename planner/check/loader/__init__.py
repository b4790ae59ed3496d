"""What DeepSpeed refuses while it reads its configuration, and where.

In: the document, the schema, and the number of ranks if it is known. Out: a reason for each place. Answers: does
`DeepSpeedConfig(document)` raise? What fails later, or never, is left to the rules. Followed branch by branch in
DeepSpeed 0.19.8; the tests hold it to the installed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.check.loader.batch import batch_refusals
from planner.check.loader.plain import plain_refusals
from planner.check.loader.typed import typed_refusals

__all__ = ["batch_refusals", "refusals"]


def refusals(config: Mapping[str, Any], schema: Mapping[str, Any], ranks: int | None = None) -> dict[str, str]:
    """The places that DeepSpeed's loader stumbles over, each with the reason; empty where it loads."""
    found: dict[str, str] = {}
    for source in (typed_refusals(config, schema), plain_refusals(config), batch_refusals(config, ranks)):
        for path, reason in source:
            found.setdefault(path, reason)
    return found
