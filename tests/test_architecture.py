"""The rules of the house that a program can hold: import direction, a pure core, documented formulas, light imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PLANNER = Path(__file__).parents[1] / "planner"
ORDER = (
    "version", "errors", "units", "toml", "records", "resources", "catalog", "spec", "geometry", "memory", "trace",
    "speed", "search", "explain", "render", "check", "launch", "accuracy", "report", "api", "cli", "__main__",
)  # fmt: skip
PURE = ("errors", "units", "records", "geometry", "memory", "speed", "search", "explain")
HEAVY = {"torch", "deepspeed", "accelerate", "transformers", "jsonschema", "yaml"}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
IMPURE_MODULES = {
    "os",
    "time",
    "pathlib",
    "subprocess",
    "random",
    "logging",
    "socket",
    "shutil",
    "tempfile",
    "datetime",
}
# Catalogue rows become records of later stages (speed constants); `spec` counts parameters and asks which attention
# kernel a model class really runs. None of those stages knows `catalog` or `spec`.
ALLOWED_BACKWARDS = {
    ("catalog", "speed"),
    ("catalog", "geometry"),
    ("spec", "geometry"),
    ("spec", "memory"),
}


def modules() -> list[Path]:
    return sorted(PLANNER.rglob("*.py"))


def stage_of(path: Path) -> str:
    first = path.relative_to(PLANNER).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path, *, top_level_only: bool) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    nodes = ast.walk(tree) if not top_level_only else iter(tree.body)
    names: list[str] = []
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


def test_every_stage_has_a_place_in_the_order() -> None:
    found = {stage_of(path) for path in modules()} - {"__init__"}
    assert found == set(ORDER)
    assert len(modules()) >= 60


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PLANNER)))
def test_module_imports_only_stages_to_its_left(path: Path) -> None:
    stage = stage_of(path)
    if stage == "__init__":
        pytest.skip("the public face imports the api lazily")
    for name in imports_of(path, top_level_only=True):
        parts = name.split(".")
        if parts[0] != "planner" or len(parts) == 1:
            continue
        backwards = ORDER.index(parts[1]) > ORDER.index(stage)
        assert not backwards or (stage, parts[1]) in ALLOWED_BACKWARDS, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PLANNER)))
def test_no_module_imports_a_heavy_package_when_it_is_imported(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path, top_level_only=True)} & HEAVY


def test_the_core_is_pure() -> None:
    looked_at = 0
    for path in modules():
        if stage_of(path) not in PURE:
            continue
        looked_at += 1
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert not called & IMPURE_CALLS, path
        assert not {name.split(".")[0] for name in imports_of(path, top_level_only=False)} & (IMPURE_MODULES | HEAVY), (
            path
        )
    assert looked_at >= 40


def test_every_formula_names_its_unit_formula_source_and_limits() -> None:
    formulas = 0
    for stage in ("geometry", "memory", "speed"):
        for path in sorted((PLANNER / stage).glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    doc = ast.get_docstring(node) or ""
                    assert doc, f"{path.name}: {node.name} has no docstring"
                    if node.name.endswith(("_bytes", "_s", "_flop", "_flop_per_s", "_bytes_per_s", "_elements")):
                        formulas += 1
                        for word in ("Formula:", "Source:", "Leaves out:"):
                            assert word in doc, f"{path.name}: {node.name} lacks `{word}`"
    assert formulas >= 60


def test_no_assert_guards_user_input() -> None:
    for path in modules():
        assert not any(isinstance(n, ast.Assert) for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))), path


def test_the_main_command_imports_no_training_package(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from planner.cli.main import run\n"
        f"code = run(['--model', '13b', '--gpus', '4xA100-80G', '--out', {str(tmp_path / 'plan')!r}])\n"
        "heavy = {'torch', 'deepspeed', 'accelerate', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan" / "ds_config.json").exists()
