"""Runs the command of every example and writes its answer and its files again:  python tests/regenerate_examples.py"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def cases() -> list[Path]:
    """Every example's folder."""
    return sorted(path.parent for path in EXAMPLES.glob("*/command"))


def produce(case: Path, folder: Path) -> dict[str, bytes]:
    """Files that the example's command gives in an empty folder: its answer and the plan it writes."""
    program, *arguments = shlex.split((case / "command").read_text(encoding="utf-8"))
    if program != "dsplan":
        raise ValueError(f"{case.name} runs {program}")
    command = [sys.executable, "-m", "planner", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, env=env)
    written = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {"answer.txt": done.stdout, **written}


def main() -> None:
    """Replace what is committed."""
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            files = produce(case, Path(folder))
        shutil.rmtree(case / "plan", ignore_errors=True)
        for name, content in files.items():
            (case / name).parent.mkdir(parents=True, exist_ok=True)
            (case / name).write_bytes(content)
            if name.endswith(".sh"):
                (case / name).chmod(0o755)


if __name__ == "__main__":
    main()
