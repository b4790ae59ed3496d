"""The word after `--model` to a `ModelShape`: which model is meant?

    13b, 30b-a3b          a plain size: the catalogue says which model stands for it, and the answer says so
    llama-2-13b           a catalogue name or alias, in any case, hyphens or not
    Qwen/Qwen2.5-7B       a Hugging Face id: the catalogue first, then the hub if `dsplan[launch]` is installed
    ./model, config.json  a config.json or the folder that holds one

A text is a path if it starts with `.`, `/` or `~`, holds a separator and ends in `.json`, or exists and is no name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.catalog.models import LISTING, ModelRow, find_model, knows_model
from planner.errors import PlannerError, one_line
from planner.records.model import ModelShape
from planner.spec.hf_config import shape_from_config

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 4 * 2**20
"""No config.json of a model is larger; what is larger is something else."""
MAX_NAME_CHARACTERS = 512
HUB_TIMEOUT_S = 10

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(text: str) -> ModelShape:
    """The shape of the model that `text` names; raises PlannerError if there is none."""
    text = text.strip()
    if not text:
        raise PlannerError("no model is named", hint=f"for example `--model 13b`; `{LISTING}` lists every model")
    if len(text) > MAX_NAME_CHARACTERS or "\0" in text or text.startswith("-"):
        raise PlannerError(f"`{one_line(text[:40])}` is no model name", hint=f"`{LISTING}` lists every model")
    if _looks_like_path(text):
        return _from_path(text)
    if knows_model(text):
        return row_shape(find_model(text))
    if _exists(text):
        return _from_path(text)
    if _HUB_ID.fullmatch(text):
        return shape_from_config(_fetch_config(text), name=text.rpartition("/")[2], source=_hub_url(text), hub_id=text)
    return row_shape(find_model(text))


def row_shape(row: ModelRow) -> ModelShape:
    """The shape of a row of the catalogue."""
    shape = shape_from_config(
        {"model_type": row.model_type, **row.config}, name=row.name, source=row.source, hub_id=row.hub_id
    )
    return replace(shape, notes=(*row.notes, *shape.notes))


# --- files


def _looks_like_path(text: str) -> bool:
    separators = tuple(s for s in (os.sep, os.altsep) if s)
    has_separator = any(s in text for s in separators)
    return text.startswith((".", "~", *separators)) or (has_separator and text.endswith(".json"))


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:
        return False


def _from_path(text: str) -> ModelShape:
    """The shape in a config.json; its name is the folder's, its source no path of this machine."""
    try:
        path = Path(text).expanduser()
        file = path / CONFIG_NAME if path.is_dir() else path
        if path.is_dir() and not file.exists():
            raise PlannerError(
                f"the folder `{text}` holds no {CONFIG_NAME}", hint="give the folder of a transformers model"
            )
        config = _read_config(file, text)
        folder = file.resolve().parent.name
    except RuntimeError:
        raise PlannerError(f"`{text}` names a home folder that does not exist", hint="write the path out") from None
    except OSError as error:
        raise PlannerError(
            f"`{text}` cannot be read: {error.strerror or type(error).__name__}", hint="give a readable config.json"
        ) from None
    name = file.stem if file.name != CONFIG_NAME else folder or "model"
    return shape_from_config(config, name=one_line(name), source=one_line(file.name))


def _read_config(file: Path, text: str) -> Mapping[str, Any]:
    """The JSON object in `file`; raises PlannerError for anything else, OSError if it cannot be read."""
    if file.exists() and not file.is_file():
        raise PlannerError(f"`{text}` is no regular file", hint="give a config.json or the folder that holds one")
    with file.open("rb") as stream:
        data = stream.read(MAX_CONFIG_BYTES + 1)
    if len(data) > MAX_CONFIG_BYTES:
        raise PlannerError(f"`{text}` is larger than 4 MiB", hint="give the config.json of the model, not its weights")
    return parse_config(data, text)


def parse_config(data: bytes, text: str) -> Mapping[str, Any]:
    """The JSON object in `data`, which was read from `text`; raises PlannerError for anything else."""
    try:
        config = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PlannerError(
            f"`{text}` is no text file", hint="give the config.json of the model, not its weights"
        ) from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise PlannerError(
            f"`{text}` is no JSON: {error.msg} ({place})", hint="it may be truncated; fetch it again"
        ) from None
    except (RecursionError, ValueError):
        raise PlannerError(f"`{text}` is no usable JSON", hint="give the model's own config.json") from None
    if not isinstance(config, dict):
        raise PlannerError(f"`{text}` holds no JSON object @ $", hint="give the model's own config.json")
    return config


# --- the hub


def _hub_url(hub_id: str) -> str:
    return f"https://huggingface.co/{hub_id}/blob/main/{CONFIG_NAME}"


def _fetch_config(hub_id: str) -> Mapping[str, Any]:
    """The config.json of a hub model: huggingface_hub's cache, else one request; raises PlannerError if neither."""
    local = f"download its {CONFIG_NAME} and give the path to it; `{LISTING}` lists the catalogue"
    try:
        from huggingface_hub import hf_hub_url, try_to_load_from_cache
        from huggingface_hub.utils import build_hf_headers, get_session
    except ImportError:
        raise PlannerError(
            f"`{hub_id}` is not in the catalogue, and looking it up needs huggingface_hub",
            hint=f"`pip install 'dsplan[launch]'`, or {local}",
        ) from None
    absent = f"`{hub_id}` is not in the catalogue"
    try:
        cached = try_to_load_from_cache(hub_id, CONFIG_NAME)
        if isinstance(cached, str):
            return _read_config(Path(cached), hub_id)
        url = hf_hub_url(hub_id, CONFIG_NAME)
        answer = get_session().get(url, headers=build_hf_headers(), timeout=HUB_TIMEOUT_S)
    except PlannerError:
        raise
    except Exception as error:  # whatever the network and three HTTP libraries raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise PlannerError(
            f"{absent} and the hub cannot be asked: {reason}", hint=f"check the connection, or {local}"
        ) from None
    if answer.status_code in (401, 403):
        raise PlannerError(
            f"{absent} and the hub wants a login for it, or has no such model", hint=f"`hf auth login`, or {local}"
        )
    if answer.status_code != 200:
        raise PlannerError(
            f"{absent} and the hub answered {answer.status_code}", hint=f"check the spelling, or {local}"
        )
    return parse_config(answer.content, hub_id)
