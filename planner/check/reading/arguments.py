"""Launch lines, and the TrainingArguments among their flags.

In: a shell script, a launch line or a bare list of flags. Out: what starts the run and with which flags; the flags of
the script as TrainingArguments where they are such. Answers: which values does the command line give, and which files
does it name?
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from planner.check.one_file.training_names import KINDS, NAMES
from planner.check.reading.nodes import Entry, Form, Node, python_value
from planner.check.reading.shell_text import Word, assignments, commands

LAUNCHERS = ("accelerate", "deepspeed", "torchrun", "python", "python3", "accelerate-launch")
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# Flags without a value, of `accelerate launch` (1.15), `deepspeed` (0.19.8) and torchrun (torch 2.13): their parsers.
SWITCHES_TEXT = """
    bind_cores_to_rank cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph
    dynamo_use_regional_compilation enable_cpu_affinity force_multi fp8_use_autocast_during_eval m module
    multi_gpu no_local_rank no_python no_ssh no_ssh_check no_tpu_cluster q quiet run_path same_network
    save_pid standalone tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm
    use_parallelism_config virtual_local_rank
"""
SWITCHES = frozenset(SWITCHES_TEXT.split())
# Said by many scripts, so no sign of the Trainer by themselves.
COMMON = frozenset(("seed", "local_rank", "deepspeed", "output_dir", "learning_rate", "weight_decay", "fp16", "bf16"))
CONFIG_NAME = re.compile(r"\S+\.(?:json|ya?ml)\b", re.IGNORECASE)
NAMES_A_LAUNCHER = re.compile(r"--[\w-]*(launcher|backend|engine|strategy|accelerator)[\w-]*|--deepspeed")
"""A flag whose value is the name of a launcher, not the launcher: `run --launcher torchrun`."""
REST = "$"
"""The name under which words of a script are kept that may hold any flag: `"$@"`, `$EXTRA_ARGS`."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def is_told(value: Any) -> bool:
    """Whether a flag's value stands in the script: `$STAGE` is known to the shell only."""
    return not (isinstance(value, str) and ("$" in value or "`" in value))


def is_word(value: Any) -> TypeGuard[str]:
    """Text that stands in the script."""
    return isinstance(value, str) and is_told(value)


def read_launch(text: str) -> Node | None:
    """The tree of a launch script: launcher, launcher_flags, script, script_flags, environment; None where nothing is
    started."""
    best: Node | None = None
    for command in commands(text):
        tree = _launch_of(command)
        if tree is not None and (best is None or _weight(tree) > _weight(best)):
            best = tree
    if best is None:
        return None
    known = {name: word for name, word in assignments(text).items() if word.known and word.end > word.start}
    entries = tuple(
        Entry(name=name, start=word.start, end=word.end, node=_scalar(word, word.value)) for name, word in known.items()
    )
    environment = Node(start=best.start, end=best.end, form=Form.MAPPING, entries=entries)
    section = Entry(name="environment", start=best.start, end=best.end, node=environment)
    return replace(best, entries=(*best.entries, section))


def read_flags(text: str) -> Node | None:
    """The tree of a text that is nothing but flags."""
    words = [word for command in commands(text) for word in command]
    return _flags(words) if words and words[0].value.startswith("--") else None


def looks_like_a_script(name: str, text: str) -> bool:
    """Whether a text is for a shell: told by its first line, its name, or a launcher at the start of a line."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("#!") or name.lower().endswith((".sh", ".bash", ".sbatch", ".slurm", ".zsh")):
        return True
    return bool(re.match(r"(\w+=\S*\s+)*(accelerate\s+launch|deepspeed|torchrun|python3?|srun)\s", start)) or bool(
        re.match(r"--\w[\w-]*(\s|=)", start)
    )


def training_flags(launch: Node) -> Node | None:
    """The script's flags, where they are those of TrainingArguments."""
    flags = child(launch, "script_flags")
    if flags is None:
        return None
    names = {entry.name for entry in flags.entries}
    if "deepspeed_config" in names:  # deepspeed.add_config_arguments: the script calls deepspeed.initialize
        return None
    telling = names & NAMES - COMMON
    return flags if len(telling) >= 2 or (telling and "deepspeed" in names) else None


def child(node: Node, name: str) -> Node | None:
    """The value of a key."""
    return next((entry.node for entry in node.entries if entry.name == name), None)


def names_in_launch(text: str) -> list[str]:
    """Every JSON or YAML file that the commands of a script name."""
    return [
        part
        for command in commands(text)
        for word in command
        if word.known
        for part in CONFIG_NAME.findall(word.value.replace("=", " "))
    ]


def is_training(document: Mapping[str, Any]) -> int:
    """How many keys of a document are TrainingArguments and nothing else's."""
    return len(set(document) & NAMES)


def _weight(tree: Node) -> tuple[bool, int]:
    """A command that names its script tells more than one that leaves it to a variable; then the flags count."""
    script = child(tree, "script")
    named = script is not None and "$" not in str(script.value)
    return named, sum(len(entry.node.entries) for entry in tree.entries)


def _launch_of(words: list[Word]) -> Node | None:
    for at, word in enumerate(words):
        name = word.value.rpartition("/")[2]
        if name in LAUNCHERS and not (at and NAMES_A_LAUNCHER.fullmatch(words[at - 1].value)):
            return _split_launch(name, words[at:])
        quoted = word.end - word.start > len(word.value)
        if quoted and re.search(r"\s(launch|--\w+)\s", word.value):  # srun bash -c "torchrun ..."
            for inner in commands(word.value):
                moved = [
                    Word(value=w.value, start=w.start + word.start + 1, end=w.end + word.start + 1, known=w.known)
                    for w in inner
                ]
                tree = _launch_of(moved)
                if tree is not None:
                    return tree
    return None


def _split_launch(name: str, words: list[Word]) -> Node | None:
    launcher, at = {"accelerate-launch": "accelerate", "python3": "python"}.get(name, name), 1
    if name == "accelerate":
        if len(words) < 2 or words[1].value != "launch":
            return None
        at = 2
    elif launcher == "python":
        while at < len(words) and words[at].value in ("-u", "-O", "-B"):
            at += 1
        if at + 1 < len(words) and words[at].value == "-m" and words[at + 1].value in MODULES:
            launcher, at = MODULES[words[at + 1].value], at + 2
    first = at
    while at < len(words) and not _is_script(words, first, at, for_python=launcher == "python"):
        at += 1
    module = at < len(words) and words[at].value in ("-m", "--module")
    script = words[at + module] if at + module < len(words) else None
    end = words[-1].end
    entries = [
        Entry(name="launcher", start=words[0].start, end=words[0].end, node=_scalar(words[0], launcher)),
        _section("launcher_flags", _flags(words[first:at]), words[0]),
    ]
    if script is not None:
        entries.append(Entry(name="script", start=script.start, end=script.end, node=_scalar(script, script.value)))
        entries.append(_section("script_flags", _flags(words[at + module + 1 :]), script))
    return Node(start=words[0].start, end=end, form=Form.MAPPING, entries=tuple(entries))


def _is_script(words: list[Word], first: int, at: int, *, for_python: bool) -> bool:
    """Whether the launcher's flags end here: a file of Python, `-m`, or a word that no flag before it takes."""
    word = words[at]
    if word.value.endswith(".py") or (for_python and word.value in ("-m", "--module")):
        return True
    if word.value.startswith("-"):
        return False
    before = words[at - 1].value if at > first else ""
    takes_it = before.startswith("-") and "=" not in before and before.lstrip("-").replace("-", "_") not in SWITCHES
    return not takes_it


def _section(name: str, node: Node, word: Word) -> Entry:
    return Entry(name=name, start=word.start, end=word.end, node=node)


def _scalar(word: Word, value: Any) -> Node:
    return Node(start=word.start, end=word.end, value=value, plain=True)


def _flags(words: list[Word]) -> Node:
    """Flags by name, the last of each; a value that only the shell knows stands there as it is written."""
    found: dict[str, Entry] = {}
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if _is_open(word):
            found[REST] = Entry(name=REST, start=word.start, end=word.end, node=_scalar(word, word.value))
        if not word.value.startswith("-") or NUMBER.fullmatch(word.value):
            continue
        name, equals, value = word.value.lstrip("-").partition("=")
        name = name.replace("-", "_")
        values = [Word(value=value, start=word.end - len(value), end=word.end, known=word.known)] if equals else []
        while not equals and at < len(words) and _is_value(words[at]) and not (values and _is_open(words[at])):
            values.append(words[at])
            at += 1
        if values and _is_open(values[0]) and KINDS.get(name) == "bool":  # `--bf16 $MORE`: its value, or more flags
            found[REST] = Entry(name=REST, start=word.start, end=word.end, node=_scalar(word, values[0].value))
        if name and "$" not in name:
            entry = _flag(name, word, values)
            found[entry.name] = entry
    entries = tuple(sorted(found.values(), key=lambda entry: entry.start))
    start, end = (words[0].start, words[-1].end) if words else (0, 0)
    return Node(start=start, end=end, form=Form.MAPPING, entries=entries)


def _is_open(word: Word) -> bool:
    """A word that may stand for several: a variable without a known value, by itself."""
    return word.value.startswith("$") and not word.value.startswith("$(")


def _is_value(word: Word) -> bool:
    """Whether a word is the value of the flag before: a flag in quotes is one, `--launcher_args '--cpu 4'`."""
    quoted = word.end - word.start > len(word.value) and " " in word.value
    return quoted or not word.value.startswith("-") or bool(NUMBER.match(word.value))


def _flag(name: str, word: Word, values: list[Word]) -> Entry:
    if not values:
        negated = name.startswith("no_") and name.removeprefix("no_") in NAMES and name not in SWITCHES
        name = name.removeprefix("no_") if negated else name
        return Entry(name=name, start=word.start, end=word.end, node=_scalar(word, not negated))
    items = [
        _scalar(value, typed(value.value, KINDS.get(name, "")) if value.known else value.value) for value in values
    ]
    if len(items) == 1:
        return Entry(name=name, start=word.start, end=word.end, node=items[0])
    entries = tuple(
        Entry(name=str(index), start=item.start, end=item.end, node=item) for index, item in enumerate(items)
    )
    node = Node(start=items[0].start, end=items[-1].end, form=Form.LIST, entries=entries)
    return Entry(name=name, start=word.start, end=word.end, node=node)


def typed(text: str, kind: str) -> Any:
    """A flag's value as transformers' HfArgumentParser reads it; of an unknown flag, as it looks."""
    if kind == "text":
        return text
    lowered = text.lower()
    if kind in ("bool", "") and lowered in ("true", "false"):
        return lowered == "true"
    if kind == "bool" and lowered in ("yes", "y", "t", "1", "no", "n", "f", "0"):
        return lowered in ("yes", "y", "t", "1")
    try:
        if kind in ("int", "") and re.fullmatch(r"[-+]?\d+", text):
            return int(text)
        if kind in ("int", "float", "") and NUMBER.fullmatch(text):
            return float(text)
    except ValueError:
        return text
    return text


def document_of(tree: Node) -> Any:
    """The document of a tree of flags."""
    return python_value(tree)
