"""The flags of `dsplan check` to a Context.

In: the keywords of `planner.check`, as typed. Out: a Context. Answers: how many ranks, on which cards, which model,
read by whom? A card or a model that no table holds is no mistake here: what is known of it is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.check.context import Context, Reader, release_of
from planner.errors import PlannerError, UnknownName, nearest, one_line
from planner.records.machine import Cluster
from planner.records.model import ModelShape

READERS = {
    "trainer": Reader.TRAINER,
    "hf": Reader.TRAINER,
    "transformers": Reader.TRAINER,
    "accelerate": Reader.ACCELERATE,
    "deepspeed": Reader.DEEPSPEED,
    "none": Reader.DEEPSPEED,
    "plain": Reader.DEEPSPEED,
}
LAUNCHERS = (
    *("accelerate", "deepspeed", "torchrun", "python", "slurm", "srun", "mpirun", "ray", "kubernetes", "skypilot"),
    *("pdsh", "openmpi", "mpich", "mvapich", "sagemaker"),
)
BARE_COUNT = re.compile(r"\s*(\d{1,6})\s*(?:gpus?|cards?|ranks?)?\s*", re.IGNORECASE)
MOST_IN_A_NODE = 16
BARE_NODES = re.compile(r"\s*(\d{1,6})\s*[x*×]\s*(\d{1,6})\s*", re.IGNORECASE)
COUNT_AND_NAME = re.compile(r"\s*(\d{1,6})\s*[x*×]\s*(?:(\d{1,6})\s*[x*×]\s*)?(\S.*?)\s*", re.IGNORECASE)
NAME_AND_COUNT = re.compile(r"\s*(\S.*?)\s*[x*×]\s*(\d{1,6})\s*", re.IGNORECASE)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def context_of(
    *,
    gpus: Any = None,
    model: Any = None,
    launcher: Any = None,
    trainer: Any = None,
    deepspeed_version: Any = None,
    host_ram: Any = None,
    seq_len: Any = None,
) -> Context:
    """What the flags say; raises PlannerError for one that cannot be read."""
    ranks, name, cluster = _machine(str(gpus)) if gpus is not None else (None, None, None)
    shape, config = _model(str(model)) if model is not None else (None, None)
    ram = _positive("host_ram", host_ram)
    length = _positive("seq_len", seq_len)
    if ram is None and cluster is not None and cluster.host_memory_bytes:
        ram = cluster.host_memory_bytes / 2**30
    return Context(
        reader=_reader(trainer),
        ranks=ranks,
        gpu_name=name,
        cluster=cluster,
        host_ram_gib=ram,
        model=shape,
        model_name=None if model is None else str(model),
        model_config=config,
        seq_len=int(length) if length is not None else None,
        launcher=_launcher(launcher),
        deepspeed=release_of(str(deepspeed_version)) if deepspeed_version is not None else (),
    )


def _positive(name: str, value: Any) -> float | None:
    if value is None:
        return None
    from planner.spec.fields import positive

    return positive(name, value)


def _reader(trainer: Any) -> Reader | None:
    if trainer is None or isinstance(trainer, Reader):
        return trainer
    word = str(trainer).strip().casefold()
    if word not in READERS:
        near = nearest(word, READERS, limit=1)
        hint = f"did you mean `{near[0]}`?" if near else "it is one of trainer, accelerate, deepspeed"
        raise PlannerError(f"`--trainer {trainer}` is not known", hint=hint)
    return READERS[word]


def _launcher(launcher: Any) -> str | None:
    if launcher is None:
        return None
    word = str(launcher).strip().casefold()
    near = nearest(word, LAUNCHERS, limit=1)
    if word not in LAUNCHERS:
        hint = f"did you mean `{near[0]}`?" if near else f"it is one of {', '.join(LAUNCHERS[:6])}"
        raise PlannerError(f"`--launcher {launcher}` is not known", hint=hint)
    return word


def _machine(text: str) -> tuple[int | None, str | None, Cluster | None]:
    """Ranks, name of the card, cluster: `8` gives the first only, a card that no table holds the first two."""
    bare = BARE_COUNT.fullmatch(text) or BARE_NODES.fullmatch(text)
    if bare is not None and len(bare.groups()) > 1 and int(bare[2]) > MOST_IN_A_NODE:
        bare = None  # `1x4090` is a card
    if bare is not None:
        ranks = 1
        for count in bare.groups():
            ranks *= int(count)
        if ranks < 1:
            raise PlannerError(f"`--gpus {text}` is no number of GPUs", hint="write `8`, or `8xA100-80G`")
        return ranks, None, None
    from planner.spec.cluster import parse_cluster

    try:
        cluster = parse_cluster(text)
    except PlannerError as error:
        return _unlisted(text, error)
    return cluster.world_size, cluster.gpu.name, cluster


def _unlisted(text: str, error: PlannerError) -> tuple[int, str, None]:
    """Ranks and name of a card that the catalogue lacks, or of which it knows no box of that size."""
    from planner.spec.cluster import parse_cluster

    found = COUNT_AND_NAME.fullmatch(text)
    if found is not None:
        counts, name = [int(found[1]), int(found[2] or 1)], found[3]
    else:
        found = NAME_AND_COUNT.fullmatch(text)
        if found is None and not isinstance(error, UnknownName):
            raise error
        counts, name = ([int(found[2]), 1], found[1]) if found is not None else ([1, 1], text.strip())
    try:
        parse_cluster(name)
    except UnknownName:
        from planner.check.one_run.cards import capability_of

        if capability_of(name) is None and (found is None or nearest(name, _known_cards())):
            raise error from None
    except PlannerError:
        raise error from None
    if 0 in counts:
        raise error
    return counts[0] * counts[1], name, None


def _known_cards() -> list[str]:
    from planner.catalog.tables import gpu_names

    return list(gpu_names())


def _model(text: str) -> tuple[ModelShape | None, Mapping[str, Any] | None]:
    """The shape and the config.json of a model, each None where it cannot be had."""
    from planner.spec.model import resolve_model

    config = _config_file(text)
    try:
        shape = resolve_model(text)
    except PlannerError:
        if config is None and not HUB_ID.fullmatch(text.strip()) and not _is_recognised(text):
            raise
        return None, config
    return shape, config if config is not None else _catalogue_config(text)


def _is_recognised(text: str) -> bool:
    """Whether the name alone tells the type of the model."""
    from planner.check.one_run.known_models import type_of

    return type_of(Context(model_name=text)) is not None


def _config_file(text: str) -> Mapping[str, Any] | None:
    path = Path(os.path.expanduser(text))
    try:
        file = path / "config.json" if path.is_dir() else path
        config = json.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        raise PlannerError(f"`{one_line(text)}` is no readable config.json", hint="give the model's own file") from None
    return config if isinstance(config, Mapping) else None


def _catalogue_config(text: str) -> Mapping[str, Any] | None:
    from planner.catalog.models import find_model, knows_model

    if not knows_model(text):
        return None
    row = find_model(text)
    return {"model_type": row.model_type, **row.config}
