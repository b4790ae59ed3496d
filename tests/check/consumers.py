"""What the installed readers say about a configuration: the oracle of the tests beside this file."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def world(ranks: int) -> Iterator[None]:
    """DeepSpeed believes that so many processes run."""
    from deepspeed import comm

    with (
        patch.object(comm, "get_rank", lambda group=None: 0),
        patch.object(comm, "get_world_size", lambda group=None: ranks),
    ):
        yield


@functools.cache
def _quiet() -> None:
    for name in ("DeepSpeed", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def deepspeed_refusal(document: Any, ranks: int = 1) -> str:
    """The exception of DeepSpeed's loader as text; empty where it loads."""
    from deepspeed.runtime.config import DeepSpeedConfig

    _quiet()
    with world(ranks):
        try:
            DeepSpeedConfig(copy.deepcopy(document))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
