"""TOML to dict: the only place that knows that Python 3.10 has no tomllib."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def loads(text: str) -> dict[str, Any]:
    """The document as nested dicts; raises ValueError (TOMLDecodeError) on bad TOML."""
    document: dict[str, Any] = tomllib.loads(text)
    return document
