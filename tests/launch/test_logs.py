"""The line that says why a launch failed."""

from __future__ import annotations

import pytest

from planner.launch.logs import hint_for, telling_line

TORCHRUN = """\
W1129 16:40:01 torch/distributed/run.py:852] Setting OMP_NUM_THREADS
[rank1]: Traceback (most recent call last):
[rank1]:   File "smoke_train.py", line 290, in <module>
[rank1]:     main()
[rank1]: RuntimeError: Error building extension 'cpu_adam'
[rank0]: Traceback (most recent call last):
[rank0]: torch.distributed.DistBackendError: Connection closed by peer [127.0.0.1]:4242
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
smoke_train.py FAILED
""".splitlines()

TRAINER = """\
Traceback (most recent call last):
  File "deepspeed.py", line 258, in trainer_config_finalize
    raise ValueError(
ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:
- ds fp16.enabled=True vs hf fp16|fp16_full_eval=False
The easiest method is to set these DeepSpeed config values to 'auto'.
subprocess.CalledProcessError: Command '['python', 'smoke_train.py']' returned non-zero exit status 1.
""".splitlines()


def test_the_first_workers_exception_is_the_cause():
    assert telling_line(TORCHRUN) == "RuntimeError: Error building extension 'cpu_adam'"


def test_a_list_below_the_exception_belongs_to_it():
    assert telling_line(TRAINER).endswith("values: - ds fp16.enabled=True vs hf fp16|fp16_full_eval=False")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "launch.sh: line 9: deepspeed: command not found"], "launch.sh: line 9: deepspeed: command not found"),
        (["cannot be dry-run here: NVMe offload needs libaio", "[launch] exits with return code = 1"],
         "cannot be dry-run here: NVMe offload needs libaio"),
        (["something", "", "the last words", ""], "the last words"),
        ([], "nothing"),
    ],
)  # fmt: skip
def test_without_an_exception_the_last_complaint_or_line_is_taken(lines, expected):
    assert telling_line(lines) == expected


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (TORCHRUN, "g++"),
        (TRAINER, "disagree"),
        (["ModuleNotFoundError: No module named 'hjson'"], "dsplan[launch]"),
        (["OSError: [Errno 28] No space left on device"], "space"),
        (["strange"], "smoke.json"),
    ],
)
def test_known_failures_have_a_hint(lines, words):
    assert words in hint_for(lines, timed_out=False)


def test_a_time_limit_hints_at_the_first_compile():
    assert "compiles" in hint_for(["step 1"], timed_out=True)
