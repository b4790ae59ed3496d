"""The end of a launch's output to the line that says why it failed, and to a hint.

In: the last lines. Out: one line; one hint. Launchers wrap a worker's exception in their own, several ranks fail at
once, and those that wait for a dead rank complain last: the first exception that is not a launcher's is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b:? ?.*)$"
)
WRAPPERS = ("ChildFailedError", "CalledProcessError", "SignalException")
LISTED = re.compile(r"^(?:\[rank\d+\]: ?)?(- .*)$")
SAID = re.compile(
    r"(?:^|\s)(?:error|fatal): .+|cannot be dry-run here: .+|command not found|No such file", re.IGNORECASE
)
HINTS = (
    (
        "cannot be dry-run here",
        "dry-run the plan on a machine that has what is missing, or plan with another --offload",
    ),
    ("libaio", "install libaio (Debian: libaio-dev), or dry-run the plan with another --offload"),
    ("Ninja is required", 'pip install "dsplan[launch]"'),
    ("Error building extension", "DeepSpeed compiles its CPU optimizers: install g++ and the headers of this Python"),
    ("ModuleNotFoundError: No module named", 'pip install "dsplan[launch]"'),
    ("No space left on device", "free some space in the temporary folder and the cache of torch extensions"),
    ("Address already in use", "start it again: another program took the port"),
    (
        "mismatch TrainingArguments",
        "ds_config.json and plan.json disagree: write the plan again instead of editing one",
    ),
    ("exitcode  : -9", "the machine ran out of memory: end other programs, or use a larger machine"),
)


def telling_line(tail: Sequence[str]) -> str:
    """The line that names the cause, with the list that follows it, if one does."""
    for i, line in enumerate(tail):
        found = EXCEPTION.match(line.rstrip())
        if found and not any(wrapper in line for wrapper in WRAPPERS):
            listed = []
            for following in tail[i + 1 : i + 6]:
                item = LISTED.match(following)
                if item is None:
                    break
                listed.append(item[1])
            return " ".join([found[1].strip(), *listed])
    said = [line.strip() for line in tail if SAID.search(line)]
    spoken = said or [line.strip() for line in tail if line.strip()]
    return spoken[-1] if spoken else "nothing"


def hint_for(tail: Sequence[str], *, timed_out: bool) -> str:
    """The next step for a failure that is known; otherwise how to see everything."""
    text = "\n".join(tail)
    for words, hint in HINTS:
        if words in text:
            return hint
    if timed_out:
        return "raise the time limit: the first dry run compiles CPU optimizers, which takes minutes"
    return "smoke.json in the folder holds what was asked, what was answered, and the end of the launch's output"
