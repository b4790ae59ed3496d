"""A document to the text of a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_text(document: Mapping[str, Any], *, sort_keys: bool) -> str:
    """Strict JSON, indented, with a final newline."""
    return json.dumps(document, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n"
