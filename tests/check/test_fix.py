"""`--fix`: what changes, what stays byte for byte, and that the readers take the mended files."""

from __future__ import annotations

import difflib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from consumers import accelerate_refusal, deepspeed_refusal

from planner.check import check
from planner.check.context import Context
from planner.check.given import context_of
from planner.check.mending.edit import edited
from planner.check.mending.fix import Fixed, fix_paths
from planner.check.reading.nodes import python_value
from planner.check.reading.read import Notation, parse
from planner.records.problem import Edit, EditKind, Severity

SHARED = Path(__file__).parents[2].parent / "shared"
needs_corpus = pytest.mark.skipif(
    not (SHARED / "corpus").is_dir(), reason="the collected configurations are not beside the checkout"
)

JSON = """{
  // note
  "a": 1, // one
  "zero": {"stage": 2, "x": [1, 2]},
  "off": {
    "device": "CPU",
    "n": {"k": 1}
  },
  "b": True,
  "last": 3
}
"""
YAML = """# head
a: 1  # one
mixed: no
config:
  stage: 3   # three

  # about file
  file: x.json
  lr: 5e7
list:
  - k: 1
    j: 2
  - 5
empty:
tail: {p: 1, q: 2}
"""


def changed(text: str, new: str) -> list[str]:
    return [line.rstrip("\n") for line in difflib.ndiff(text.splitlines(), new.splitlines()) if line[:1] in "+-"]


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        ({"kind": "set", "path": "$.a", "value": 5}, ['-   "a": 1, // one', '+   "a": 5, // one']),
        ({"kind": "set", "path": "$.b", "value": True}, ['-   "b": True,', '+   "b": true,']),
        ({"kind": "set", "path": "$.zero.new", "value": "é"},
         ['-   "zero": {"stage": 2, "x": [1, 2]},', '+   "zero": {"stage": 2, "x": [1, 2], "new": "é"},']),
        ({"kind": "set", "path": "$.off.q", "value": 1.5},
         ['-     "n": {"k": 1}', '+     "n": {"k": 1},', '+     "q": 1.5']),
        ({"kind": "set", "path": "$.new.deep", "value": None},
         ['-   "last": 3', '+   "last": 3,', '+   "new": {"deep": null}']),
        ({"kind": "remove", "path": "$.last"}, ['-   "last": 3']),
        ({"kind": "remove", "path": "$.a"}, ['-   "a": 1, // one']),
        ({"kind": "remove", "path": "$.zero.stage"},
         ['-   "zero": {"stage": 2, "x": [1, 2]},', '+   "zero": {"x": [1, 2]},']),
        ({"kind": "remove", "path": "$.zero.x"},
         ['-   "zero": {"stage": 2, "x": [1, 2]},', '+   "zero": {"stage": 2},']),
        ({"kind": "rename", "path": "$.off.device", "to": "dev"}, ['-     "device": "CPU",', '+     "dev": "CPU",']),
        ({"kind": "move", "path": "$.a", "to": "$.off.n.a"},
         ['-   "a": 1, // one', '-     "n": {"k": 1}', '+     "n": {"k": 1, "a": 1}']),
    ],
)  # fmt: skip
def test_an_edit_of_json_changes_its_own_lines_only(edit: dict[str, Any], lines: list[str]) -> None:
    new = edited(JSON, Notation.JSON, Edit(**{**edit, "kind": EditKind(edit["kind"])}))
    assert new is not None
    assert [line for line in changed(JSON, new) if not line.startswith("?")] == lines
    assert edited(JSON.replace("\n", "\r\n"), Notation.JSON, Edit(**{**edit, "kind": EditKind(edit["kind"])})) == (
        new.replace("\n", "\r\n")
    )


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        ({"kind": "set", "path": "$.mixed", "value": "no"}, ["- mixed: no", "+ mixed: 'no'"]),
        ({"kind": "set", "path": "$.config.lr", "value": 50000000}, ["-   lr: 5e7", "+   lr: 50000000"]),
        ({"kind": "set", "path": "$.config.lr", "value": 1e-5}, ["-   lr: 5e7", "+   lr: 1.0e-05"]),
        ({"kind": "remove", "path": "$.config.stage"}, ["-   stage: 3   # three"]),
        ({"kind": "remove", "path": "$.config.lr"}, ["-   lr: 5e7"]),
        ({"kind": "remove", "path": "$.list[0].k"}, ["-   - k: 1", "-     j: 2", "+   - j: 2"]),
        ({"kind": "remove", "path": "$.tail.p"}, ["- tail: {p: 1, q: 2}", "+ tail: {q: 2}"]),
        ({"kind": "set", "path": "$.empty.x", "value": 3}, ["- empty:", "+ empty: {x: 3}"]),
        ({"kind": "set", "path": "$.config.new", "value": "standard"}, ["+   new: standard"]),
        ({"kind": "set", "path": "$.list[0].z", "value": None}, ["+     z: null"]),
        ({"kind": "set", "path": "$.top", "value": "a: b"}, ["+ top: 'a: b'"]),
        ({"kind": "move", "path": "$.a", "to": "$.config.a"}, ["- a: 1  # one", "+   a: 1"]),
        ({"kind": "rename", "path": "$.config.lr", "to": "other"}, ["-   lr: 5e7", "+   other: 5e7"]),
    ],
)
def test_an_edit_of_yaml_changes_its_own_lines_only(edit: dict[str, Any], lines: list[str]) -> None:
    new = edited(YAML, Notation.YAML, Edit(**{**edit, "kind": EditKind(edit["kind"])}))
    assert new is not None
    assert [line for line in changed(YAML, new) if not line.startswith("?")] == lines
    if edit["kind"] == "set":
        found = yaml.safe_load(new)
        for key in edit["path"].replace("[0]", ".0").split(".")[1:]:
            found = found[int(key)] if key.isdigit() else found[key]
        assert found == edit["value"]


@pytest.mark.parametrize(
    ("text", "notation", "new"),
    [
        ('{"a": 1, "b": 2, "a": 3, "a": 4}', Notation.JSON, '{"b": 2, "a": 4}'),
        ("a: 1\nb: 2\na: 3\n", Notation.YAML, "b: 2\na: 3\n"),
    ],
)
def test_of_a_key_written_several_times_the_last_stays(text: str, notation: Notation, new: str) -> None:
    assert edited(text, notation, Edit(kind=EditKind.KEEP_LAST, path="$.a")) == new


@pytest.mark.parametrize(
    "edit",
    [
        Edit(kind=EditKind.RENAME, path="$.a", to="last"),
        Edit(kind=EditKind.MOVE, path="$.a", to="$.off.n.k"),
        Edit(kind=EditKind.MOVE, path="$.off", to="$.off.n.off"),
        Edit(kind=EditKind.REMOVE, path="$.nothing"),
        Edit(kind=EditKind.SET, path="$.a.below", value=1),
        Edit(kind=EditKind.SET, path="$.zero.x[7]", value=1),
    ],
)
def test_an_edit_without_a_place_is_none(edit: Edit) -> None:
    assert edited(JSON, Notation.JSON, edit) is None


def test_random_edits_of_json_do_to_the_text_what_they_do_to_the_document() -> None:
    chance = random.Random(3)
    document = {"a": 1, "b": {"c": [1, {"d": 2}], "e": {}}, "f": {"g": {"h": True, "i": None}}, "j": "x"}
    paths = ["$.a", "$.b", "$.b.e", "$.f.g", "$.f.g.h", "$.f.g.i", "$.j", "$.f", "$.b.c"]
    done = 0
    for indent in (None, 1, 2, 4):
        for _ in range(200):
            text, copy = json.dumps(document, indent=indent), json.loads(json.dumps(document))
            for _ in range(chance.randint(1, 4)):
                path, kind = chance.choice(paths), chance.choice([EditKind.SET, EditKind.REMOVE])
                new = edited(
                    text, Notation.JSON, Edit(kind=kind, path=path, value=chance.choice([1, "t", None, {"q": 1}]))
                )
                if new is None:
                    continue
                keys = path.split(".")[1:]
                before, after = json.loads(text), json.loads(new)
                inner_before, inner_after = before, after
                for key in keys[:-1]:
                    if inner_before.get(key) is None:
                        inner_before[key] = {}
                    inner_before, inner_after = inner_before[key], inner_after[key]
                if kind is EditKind.REMOVE:
                    del inner_before[keys[-1]]
                else:
                    inner_before[keys[-1]] = inner_after[keys[-1]]
                assert before == after
                text, done = new, done + 1
            assert copy == document
    assert done >= 800


LAX = """// top
{
  // note, a
  'a': 1, // one, two
  # hash
  b: 5e8
  /* x
 y, */ "c": [1, 2,], // last
 "d": 'q"', "e": "kept // as # it is",
}
"""


def test_a_file_for_strict_readers_loses_comments_and_commas_only() -> None:
    strict = Edit(kind=EditKind.STRICT, path="$")
    assert edited(LAX, Notation.JSON, strict) == (
        '{\n  "a": 1,\n  "b": 5e8,\n "c": [1, 2],\n "d": "q\\"", "e": "kept // as # it is"\n}\n'
    )
    assert edited("\ufeffa: 1\nb: [2 # two\n 3\n]\n", Notation.JSON, strict) == '{"a": 1,\n"b": [2,\n 3\n]\n}'
    assert edited('{"a": TEMPLATE\n}', Notation.JSON, strict) is None


@needs_corpus
def test_strict_files_and_templates_are_left_as_they_are() -> None:
    strict, same, templates = Edit(kind=EditKind.STRICT, path="$"), 0, 0
    for path in (SHARED / "corpus" / "deepspeed").glob("*.json"):
        text = path.read_bytes().decode("utf-8")
        new = edited(text, Notation.JSON, strict)
        same += new == text
        templates += new is None
        assert new in (text, None), path
    assert (same, templates) == (212, 15)


def test_comments_go_only_where_the_reader_refuses_them(tmp_path: Path) -> None:
    text = (
        '{\n  // sharded\n  "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,\n'
        '  "zero_optimization": {"stage": 2},\n}\n'
    )
    (path,) = write(tmp_path, {"ds.json": text})
    assert fix_paths([path], Context()).texts == {}
    assert fix_paths([path], context_of(trainer="deepspeed")).texts == {}
    for_trainer = fix_paths([path], context_of(trainer="trainer")).texts[path]
    assert for_trainer == text.replace("  // sharded\n", "").replace("},\n}", "}\n}")


def write(folder: Path, files: dict[str, Any]) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return [str(folder / name) for name in files]


def errors(fixed: Fixed) -> set[tuple[str, str]]:
    return {(p.rule, p.path) for p in fixed.result.findings if p.severity is Severity.ERROR}


GATHERS = '"stage": 2, "stage3_gather_16bit_weights_on_model_save": true'
# what stands in the file, what stands there after
MENDED: tuple[tuple[str, str], ...] = (
    ('"zero_optimisation": {"stage": 2}', '"zero_optimization": {"stage": 2}'),
    ('"elasticity": {"enabled": false}, "a": 1', '"a": 1'),
    ('"zero_optimization": {"stage": "3", "stage3_gather_16bit_weights_on_model_save": true}',
     '"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}'),
    ('"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "CPU"}}',
     '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}'),
    ('"zero_optimization": {"stage": 2}, "aio": {"thread_count": 1}',
     '"zero_optimization": {"stage": 2}, "aio": {"intra_op_parallelism": 1}'),
    ('"communication_data_type": "bfloat16"', '"communication_data_type": "bf16"'),
    ('"optimizer": {"type": "AdamW", "params": {"learning_rate": 1e-5}}',
     '"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}'),
    ('"bf16": {"enabled": true, "loss_scale": 0}', '"bf16": {"enabled": true}'),
    (f'"tensor_parallel": {{"tp_size": 2}}, "zero_optimization": {{{GATHERS}}}',
     f'"tensor_parallel": {{"autotp_size": 2}}, "zero_optimization": {{{GATHERS}}}'),
    ('"zero_optimization": {"stage": 2, "cpu_offload": true}',
     '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}'),
    ('"zero_optimization": {"stage": 2, "sub_group_size": "auto"}', '"zero_optimization": {"stage": 2}'),
)  # fmt: skip


@pytest.mark.parametrize(("before", "after"), MENDED, ids=range(len(MENDED)))
def test_each_mechanical_fix_writes_what_the_rule_says(before: str, after: str, tmp_path: Path) -> None:
    head, tail = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, ', "}\n"
    (path,) = write(tmp_path, {"ds.json": head + before + tail})
    fixed = fix_paths([path], Context())
    expected = head + after.replace(', "a": 1', "") + tail
    if '"a": 1' in after:
        expected = head + '"a": 1' + tail
    assert fixed.texts[path] == expected
    assert fixed.diffs[path].startswith(f"--- a/{path}\n+++ b/{path}\n@@")
    assert Path(path).read_text() == head + before + tail  # nothing is written here


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "ds.json",
            '{"train_batch_size": 64, "gradient_clipping": 1.0, "zero_stage": 3, "zero_optimization": {"stage": 2}}',
        ),
        ("ds.json", '{"train_batch_size": 512, "train_micro_batch_size_per_gpu": 32, "gradient_clipping": 1.0}'),
        ("ds.json", '{"train_batch_size": 64, "gradient_clipping": 1.0, "fp16": {"enabled": true, "loss_scale": 128}}'),
        (
            "ds.json",
            '{"train_batch_size": 64, "gradient_clipping": 1.0, '
            '"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": false}}',
        ),
        (
            "acc.yaml",
            "distributed_type: DEEPSPEED\nnum_processes: 8\n"
            "deepspeed_config:\n  zero_stage: 3\n  zero3_save_16bit_model: false\n",
        ),
    ],
)
def test_a_choice_that_somebody_made_is_left_alone(name: str, text: str, tmp_path: Path) -> None:
    """The accumulation that a total gives, a fixed loss scale, a save that does not gather."""
    (path,) = write(tmp_path, {name: text})
    assert fix_paths([path], Context()).texts == {}


def test_a_clipping_value_keeps_its_number(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"ds.json": '{"train_micro_batch_size_per_gpu": 2, "max_grad_norm": 0.5}'})
    assert json.loads(fix_paths([path], Context()).texts[path])["gradient_clipping"] == 0.5
    filled = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}'
    (path,) = write(tmp_path, {"ds.json": filled})
    assert json.loads(fix_paths([path], Context()).texts[path])["gradient_clipping"] == "auto"


def test_a_name_is_mended_to_one_that_can_hold_the_value(tmp_path: Path) -> None:
    text = "distributed_type: MULTI_GPU\nnum_processes: 8\nmain_training_port: 29500\n"
    (path,) = write(tmp_path, {"acc.yaml": text})
    assert "main_process_port: 29500" in fix_paths([path], Context()).texts[path]


def test_a_fix_that_would_bring_an_error_is_left_out(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "fp16": {"enabled": "true"}}'
    (path,) = write(tmp_path, {"ds.json": text})
    fixed = fix_paths([path], Context())
    assert "DS030" not in {p.rule for p in fixed.result.findings} or fixed.texts == {}


def test_one_fix_may_open_the_way_to_the_next(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimisation": {"stage": "2"}}'
    (path,) = write(tmp_path, {"ds.json": text})
    fixed = fix_paths([path], Context())
    assert json.loads(fixed.texts[path])["zero_optimization"] == {"stage": 2}
    assert fixed.result.findings == ()


def test_yaml_words_are_written_as_they_were_meant(tmp_path: Path) -> None:
    text = (
        "distributed_type: DEEPSPEED\nmixed_precision: no # off\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 2\n"
    )
    (path,) = write(tmp_path, {"acc.yaml": text})
    fixed = fix_paths([path], Context())
    assert fixed.texts[path] == text.replace(": no #", ": 'no' #")
    (path,) = write(tmp_path, {"args.yaml": "learning_rate: 5e-5\noutput_dir: x\nsave_steps: 5e2\n"})
    assert fix_paths([path], Context()).texts[path] == "learning_rate: 5.0e-05\noutput_dir: x\nsave_steps: 500\n"


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SHARED / "data" / name).read_text(encoding="utf-8").splitlines()]


@needs_corpus
@pytest.mark.deepspeed
@pytest.mark.accelerate
def test_known_failures_that_can_be_mended_load_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    fixable, loaded = 0, Counter[str]()
    lintable = [row for row in rows("config_failures.jsonl") if row["lintable"]]
    for row in lintable:
        files = {name if "." in name else f"{name}.json": content for name, content in row["files"].items()}
        paths = write(tmp_path / row["id"], files)
        given = row["context"]
        context = context_of(gpus=f"{given['world_size']}x{given['gpu']}", trainer=given.get("consumer"))
        fixed = fix_paths(paths, context)
        where = {place.rpartition("#")[2] for place in row["where"]}
        if not {problem.path for problem in fixed.mended} & where:
            continue
        fixable += 1
        left = [p for p in fixed.result.findings if p.path in where and p.severity.value == row["severity"]]
        assert not left, row["id"]
        new = {Path(path).name: fixed.texts.get(path, Path(path).read_text()) for path in paths}
        if errors(fixed) or given.get("consumer") == "trainer":
            continue
        if "ds_config.json" in new and '"auto"' not in new["ds_config.json"]:
            assert deepspeed_refusal(new["ds_config.json"], given["world_size"]) == "", row["id"]
            loaded["deepspeed"] += 1
        if "accelerate.yaml" in new:
            assert accelerate_refusal(new["accelerate.yaml"]) == "", row["id"]
            loaded["accelerate"] += 1
    assert fixable >= 36, fixable  # a pinned total, torch's own AdamW, a gather flag set to false are choices
    assert loaded["deepspeed"] >= 20, loaded
    assert loaded["accelerate"] >= 5, loaded


@needs_corpus
def test_public_files_change_in_the_edited_lines_only() -> None:
    files = sorted([*(SHARED / "corpus").rglob("*.json"), *(SHARED / "corpus").rglob("*.yaml")])
    touched, mended = 0, Counter[str]()
    for path in files:
        text = path.read_bytes().decode("utf-8")
        before = check(path)
        fixed = fix_paths([str(path)], Context())
        assert path.read_bytes().decode("utf-8") == text
        mended.update(problem.rule for problem in fixed.mended)
        gone = {(p.rule, p.path) for p in fixed.mended}
        after = {(p.rule, p.path) for p in fixed.result.findings}
        old = {(p.rule, p.path) for p in before.findings if p.severity is Severity.ERROR}
        assert not gone & after, path
        assert errors(fixed) <= old, path
        if str(path) not in fixed.texts:
            continue
        touched += 1
        new = fixed.texts[str(path)]
        comments = [line for line in text.splitlines() if line.lstrip().startswith(("#", "//"))]
        assert comments == [line for line in new.splitlines() if line.lstrip().startswith(("#", "//"))], path
        kept = set(places_of(path.name, text)) & set(places_of(path.name, new))
        edits = {p.path for p in fixed.mended}
        old_values, new_values = places_of(path.name, text), places_of(path.name, new)
        for place in kept:
            if not any(place == edit or edit.startswith(f"{place}.") for edit in edits):
                same = old_values[place] == new_values[place] or isinstance(new_values[place], (dict, list))
                assert same, (path, place)
    assert len(files) == 346
    assert touched >= 90
    assert mended.total() >= 150


def places_of(name: str, text: str) -> dict[str, Any]:
    from planner.check.reading.nodes import places

    return {path: python_value(entry.node) for path, entry in places(parse(name, text).root).items()}
