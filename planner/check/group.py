"""Which files belong to one run.

In: the files that were looked at. Out: the runs, each with its files; and the files that a file names but nobody gave.
Answers: which DeepSpeed file does this YAML, this launch line, these arguments go with?

Files that name each other belong together. Of the rest, files of different kinds belong together if there is no choice:
one DeepSpeed file, one Accelerate configuration (one file per node), one set of arguments, one launch line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from planner.check.reading.arguments import is_word, names_in_launch
from planner.check.single import Looked
from planner.check.together import File, Kind, Together

NODE_NAME = re.compile(r"[._-]?(?:node|rank|machine|host|worker)[._-]?\d+$", re.IGNORECASE)
ACCELERATE_FILE = "$.deepspeed_config.deepspeed_config_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A file that another names: by which file, at which path of it."""

    by: str
    path: str
    name: str


def named_files(looked: Looked) -> list[Named]:
    """The configuration files that a file names."""
    found: list[Named] = []
    for file in looked.files:
        for path, value in _places(file):
            if is_word(value) and value and not value.lstrip().startswith("{"):
                found.append(Named(by=looked.name, path=path, name=value))
    if looked.kind is Kind.LAUNCH:
        known = {one.name for one in found}
        more = dict.fromkeys(names_in_launch(looked.text))
        found += [Named(by=looked.name, path="$", name=name) for name in more if name not in known]
    return found


def _places(file: File) -> Iterator[tuple[str, Any]]:
    if file.kind is Kind.ACCELERATE:
        section = file.fields.get("deepspeed_config")
        if isinstance(section, Mapping):
            yield ACCELERATE_FILE, section.get("deepspeed_config_file")
    elif file.kind is Kind.TRAINING:
        yield "$.deepspeed", file.fields.get("deepspeed")
    elif file.kind is Kind.LAUNCH:
        launcher, script = file.fields.get("launcher_flags", {}), file.fields.get("script_flags", {})
        yield "$.launcher_flags.config_file", launcher.get("config_file")
        yield "$.launcher_flags.deepspeed_config_file", launcher.get("deepspeed_config_file")
        yield "$.script_flags.deepspeed", script.get("deepspeed")
        yield "$.script_flags.deepspeed_config", script.get("deepspeed_config")


def candidates(named: Named) -> tuple[str, ...]:
    """Where the file may lie: from the folder of the file that names it, and from the current one."""
    return os.path.join(os.path.dirname(named.by), named.name), named.name


def resolve(named: Named, names: Sequence[str]) -> str | None:
    """The given file that is meant: at the place itself, else the only one whose path ends alike."""
    real = {os.path.abspath(name): name for name in names}
    for place in candidates(named):
        if os.path.abspath(place) in real:
            return real[os.path.abspath(place)]
    wanted = [part for part in PurePath(named.name.replace("\\", "/")).parts if part not in (".", "..", "/")]
    if not wanted:
        return None
    alike = {name: _common_tail(PurePath(os.path.abspath(name)).parts, wanted) for name in names if name != named.by}
    most = max(alike.values(), default=0)
    best = [name for name, common in alike.items() if common == most]
    return best[0] if most and len(best) == 1 else None


def _common_tail(parts: Sequence[str], wanted: Sequence[str]) -> int:
    count = 0
    for one, other in zip(reversed(parts), reversed(wanted), strict=False):
        if one != other:
            break
        count += 1
    return count


def runs(looked: Sequence[Looked]) -> list[Together]:
    """Every run; a DeepSpeed file that several runs name is in each of them."""
    files = {(one.name, file.kind): file for one in looked for file in one.files}
    names = [one.name for one in looked]
    links = {one.name: _links(one, names) for one in looked}
    used: set[str] = set()
    found: list[Together] = []
    for one in looked:
        if one.kind is Kind.LAUNCH:
            found.append(_run([one.name], files, links, used))
    for cluster in _node_files(
        [one.name for one in looked if one.kind is Kind.ACCELERATE and one.name not in used], files
    ):
        found.append(_run(cluster, files, links, used))
    for kind in (Kind.TRAINING, Kind.DEEPSPEED):
        for one in looked:
            if one.kind is kind and one.name not in used:
                found.append(_run([one.name], files, links, used))
    return _joined(found)


def _links(one: Looked, names: Sequence[str]) -> list[str]:
    targets = (resolve(named, names) for named in named_files(one))
    return [name for name in dict.fromkeys(targets) if name is not None and name != one.name]


def _run(start: list[str], files: Mapping[Any, File], links: Mapping[str, list[str]], used: set[str]) -> Together:
    """What the starting files name, and what those name."""
    reached: list[str] = []
    waiting = list(start)
    while waiting:
        name = waiting.pop(0)
        if name not in reached:
            reached.append(name)
            waiting += links.get(name, [])
    used.update(reached)

    def first(kind: Kind) -> File | None:
        return next((files[name, kind] for name in reached if (name, kind) in files), None)

    yamls = [files[name, Kind.ACCELERATE] for name in reached if (name, Kind.ACCELERATE) in files]
    return Together(
        deepspeed=first(Kind.DEEPSPEED),
        accelerate=tuple(yamls if start[0] == (yamls[0].name if yamls else "") else yamls[:1]),
        training=first(Kind.TRAINING),
        launch=first(Kind.LAUNCH),
    )


def _node_files(names: Sequence[str], files: Mapping[Any, File]) -> list[list[str]]:
    """Accelerate files of the machines of one run: accelerate.yaml and accelerate.node1.yaml, or the same settings but
    for the rank."""
    clusters: dict[Any, list[str]] = {}
    for name in names:
        path = PurePath(name)
        stem = NODE_NAME.sub("", path.stem)
        clusters.setdefault((str(path.parent), stem), []).append(name)
    merged: dict[Any, list[str]] = {}
    for key, cluster in clusters.items():
        file = files.get((cluster[0], Kind.ACCELERATE))
        fields = file.fields if file is not None else {}
        machines = fields.get("num_machines")
        several = isinstance(machines, int) and machines > 1 and "machine_rank" in fields
        same = repr(sorted((str(k), str(v)) for k, v in fields.items() if k != "machine_rank")) if several else ""
        merged.setdefault((key[0], same) if several else (*key, ""), []).extend(cluster)
    return list(merged.values())


def _joined(found: list[Together]) -> list[Together]:
    """One run out of several that together hold at most one file of each kind."""
    if len(found) < 2:
        return found
    deepspeed = {file.name: file for run in found if (file := run.deepspeed)}
    training = {file.name: file for run in found if (file := run.training)}
    launch = {file.name: file for run in found if (file := run.launch)}
    yamls = list(dict.fromkeys(tuple(file.name for file in run.accelerate) for run in found if run.accelerate))
    if max(len(deepspeed), len(training), len(launch), len(yamls)) > 1:
        return found
    return [
        Together(
            deepspeed=next(iter(deepspeed.values()), None),
            accelerate=next((run.accelerate for run in found if run.accelerate), ()),
            training=next(iter(training.values()), None),
            launch=next(iter(launch.values()), None),
        )
    ]
