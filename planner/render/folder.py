"""A plan's files onto the disk: all of them or none, and never over somebody else's work.

In: file names and texts, a folder. Out: the files, and beside them `.dsplan-files`, their checksums in the format of
`sha256sum`, by which the next run knows what dsplan wrote and nobody has edited since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from planner.errors import PlannerError

MANIFEST = ".dsplan-files"
LATER_FILES = ("smoke.json", "measurement.json")  # dsplan writes them after runs; stale once the plan changes
NOT_FOREIGN = (MANIFEST, *LATER_FILES, "__pycache__")  # the last: Python's, once train.py ran
EXECUTABLE = "launch.sh"


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write the files; raises PlannerError when the folder holds foreign or edited files, or cannot be written."""
    try:
        _refuse_foreign(folder, force=force)
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".dsplan-", dir=folder.parent))
    except (OSError, ValueError) as error:
        raise _unwritable(folder, error) from None
    try:
        for name, text in {**files, MANIFEST: manifest(files)}.items():
            path = staging / name
            path.write_text(text, encoding="utf-8", newline="\n")
            path.chmod(0o755 if name == EXECUTABLE else 0o644)
        staging.chmod(0o755)
        _move(staging, folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def manifest(files: Mapping[str, str]) -> str:
    """`sha256  name` for each file, sorted."""
    return "".join(f"{_digest(text.encode('utf-8'))}  {name}\n" for name, text in sorted(files.items()))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _move(staging: Path, folder: Path) -> None:
    """Into place: in one step when the folder is new, file by file when it exists.

    What an earlier plan had and this one has not, such as the arguments of another training script, is taken away.
    """
    if not folder.exists():
        staging.rename(folder)
        return
    written = sorted(path.name for path in staging.iterdir())
    before = _manifest_of(folder)
    stale = [name for name in before if name not in written and not _is_edited(folder / name, before[name])]
    for name in written:
        os.replace(staging / name, folder / name)
    for name in (*stale, *LATER_FILES):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()


def _refuse_foreign(folder: Path, *, force: bool) -> None:
    """Stop before overwriting what dsplan did not write, or what was edited since."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise PlannerError(f"`{folder}` is not a folder", hint="choose another `--out`")
    known = _manifest_of(folder)
    foreign = sorted(p.name for p in folder.iterdir() if p.name not in {*known, *NOT_FOREIGN})
    edited = sorted(name for name, digest in known.items() if _is_edited(folder / name, digest))
    if force or not (foreign or edited):
        return
    what = (
        f"holds `{foreign[0]}`, which dsplan did not write"
        if foreign
        else f"holds `{edited[0]}`, which was edited since dsplan wrote it"
    )
    raise PlannerError(
        f"`{folder}` {what}", hint="choose another `--out`, or overwrite the plan's files with `--force`"
    )


def _is_edited(file: Path, digest: str) -> bool:
    return file.is_file() and _digest(file.read_bytes()) != digest


def _manifest_of(folder: Path) -> dict[str, str]:
    file = folder / MANIFEST
    if not file.is_file():
        return {}
    lines = (
        line.split("  ", 1) for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if "  " in line
    )
    return {name: digest for digest, name in lines}


def _unwritable(folder: Path, error: Exception) -> PlannerError:
    if isinstance(error, PlannerError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return PlannerError(
        f"cannot write `{folder}`: {reason}", hint="choose another folder with `--out`; nothing was left behind"
    )
