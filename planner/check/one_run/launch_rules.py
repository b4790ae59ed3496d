"""The launch line, the Accelerate files of the nodes, and what the training arguments say beside them.

In: the files and the context. Out: Problems. Answers: does the run start as many processes as meant, with the settings
meant, and which words on the command line are overruled? Source: accelerate 1.15 commands/launch.py, utils/launch.py
and DeepSpeedPlugin; transformers 5.24 training_args.py and trainer.py; seen by running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.accelerate_rules import LOOPBACK, OWNED_BY_THE_FILE, accelerate_problems
from planner.check.one_file.deepspeed_rules import is_on, section
from planner.check.one_run.run_facts import (
    argument,
    argument_is_on,
    deepspeed_yaml,
    fsdp_is_argued,
    launch_flag,
    launcher_of,
    named_file,
    number,
    reader_of,
    whole,
    yaml_of,
    zero_stage,
)
from planner.check.reading.arguments import is_told, is_word
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Edit, EditKind, Problem, Severity

FLAGS = "$.launcher_flags"
ZERO = "$.zero_optimization"
IN_THE_FILE = {
    "gradient_accumulation_steps": "$.gradient_accumulation_steps",
    "gradient_clipping": "$.gradient_clipping",
    "zero_stage": f"{ZERO}.stage",
    "offload_optimizer_device": f"{ZERO}.offload_optimizer.device",
    "offload_optimizer_nvme_path": f"{ZERO}.offload_optimizer.nvme_path",
    "offload_param_device": f"{ZERO}.offload_param.device",
    "offload_param_nvme_path": f"{ZERO}.offload_param.nvme_path",
    "zero3_save_16bit_model": f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
}
"""Where the DeepSpeed file says the same. Source: accelerate 1.15, DeepSpeedPlugin `plugin_to_config_mapping`."""
# Launchers that tell a process its rank and the world size before the script starts.
TELL_THE_RANK = ("accelerate", "deepspeed", "torchrun", "torch.distributed.run", "kubernetes", "skypilot", "pdsh")
SILENT_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "srun", "slurm", "ray", "python", "python3")
SAME_FOR_FLAGS = ("DS045", "DS122", "DS124", "DS125", "DS130", "DS132", "DS302")
MULTINODE = ("num_machines", "num_processes", "main_process_ip", "main_process_port", "distributed_type")


def overruled_flags(together: Together, context: Context) -> Iterator[Problem]:
    """Flags of `accelerate launch` for what the DeepSpeed file decides: nobody says that the file wins."""
    launch, file = together.launch, together.deepspeed
    yaml = deepspeed_yaml(together)
    through_yaml = yaml is not None and named_file(yaml.fields) is not None
    if launch is None or not (launch_flag(together, "deepspeed_config_file") or through_yaml):
        return
    for key in OWNED_BY_THE_FILE:
        flag = launch_flag(together, key)
        if flag is None:
            continue
        place = IN_THE_FILE[key]
        *sections, name = place.removeprefix("$.").split(".")
        there = section(file.fields, *sections).get(name) if file is not None else None
        same = str(there).lower() == str(flag).lower() or (number(there) is not None and number(there) == number(flag))
        severity = Severity.WARNING if same or not is_told(flag) else Severity.ERROR
        message = f"`--{key} {flag}` is overruled by the DeepSpeed file, without a word"
        fix = "take the flag out; change the file"
        yield finding("DS310", f"{FLAGS}.{key}", message, fix=fix, severity=severity, file=launch.name)
        if file is not None and there not in (None, "auto") and not same and is_told(flag):
            message = f"`{there}` is what runs, although the launch line says `--{key} {flag}`"
            yield finding("DS310", place, message, fix="write what is meant here", file=file.name)
    mixed = launch_flag(together, "mixed_precision")
    if file is not None and mixed in ("bf16", "fp16"):
        other = "bf16" if mixed == "fp16" else "fp16"
        if is_on(file.fields, other):
            message = (
                f"`--mixed_precision {mixed}` with `{other}` on in the DeepSpeed file: accelerate refuses the pair"
            )
            yield finding(
                "DS310",
                f"{FLAGS}.mixed_precision",
                message,
                fix=f"write {other}, or change the file",
                bites="config",
                file=launch.name,
            )


def flags_instead_of_a_file(together: Together, context: Context) -> Iterator[Problem]:
    """`accelerate launch --use_deepspeed` with flags is what a YAML with the same words is."""
    launch = together.launch
    flags = section(launch.fields, "launcher_flags") if launch is not None else {}
    if launch is None or together.accelerate or "use_deepspeed" not in flags or "config_file" in flags:
        return
    plain = {key: _plain(value) for key, value in flags.items()}
    if not is_told(plain.get("deepspeed_multinode_launcher")):
        plain["deepspeed_multinode_launcher"] = "standard"  # the one that nothing is said of
    if not is_told(plain.get("main_process_ip")):
        plain["main_process_ip"] = "told by the shell"
    top = {key: plain[key] for key in (*MULTINODE, "machine_rank") if key in plain}
    document = {**top, "distributed_type": "DEEPSPEED", "deepspeed_config": plain}
    for problem in accelerate_problems(document):
        if problem.rule in SAME_FOR_FLAGS:
            key = problem.path.rpartition(".")[2]
            yield replace(problem, file=launch.name, path=f"{FLAGS}.{key}", edits=())


def _plain(value: Any) -> Any:
    """A flag's text as YAML would read it."""
    text = str(value).lower()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return {"true": True, "false": False}.get(text, value)


def two_files(together: Together, context: Context) -> Iterator[Problem]:
    """The Trainer's own file beside DeepSpeed settings of the YAML."""
    yaml, named = deepspeed_yaml(together), argument(together, "deepspeed")
    if yaml is None or not is_word(named) or together.training is None:
        return
    block = section(yaml.fields, "deepspeed_config")
    for key in (*OWNED_BY_THE_FILE, "mixed_precision"):
        path = "$.mixed_precision" if key == "mixed_precision" else f"$.deepspeed_config.{key}"
        value = yaml.fields.get(key) if key == "mixed_precision" else block.get(key)
        if value is not None and block.get("deepspeed_config_file") is None:
            message = f"the arguments name `{PurePath(named).name}`, and accelerate refuses `{key}` beside such a file"
            edits = (Edit(kind=EditKind.REMOVE, path=path),)
            fix = "keep it in the DeepSpeed file only, or leave `deepspeed` out of the arguments"
            yield finding("DS120", path, message, fix=fix, file=yaml.name, edits=edits)
    other = block.get("deepspeed_config_file")
    if isinstance(other, str) and PurePath(other).name != PurePath(named).name:
        message = f"the arguments name another file, `{PurePath(named).name}`: the Trainer takes that one"
        path = "$.deepspeed_config.deepspeed_config_file"
        yield finding(
            "DS120", path, message, fix="name one file", severity=Severity.WARNING, bites="silently", file=yaml.name
        )


def ranks_are_told(together: Together, context: Context) -> Iterator[Problem]:
    """DeepSpeed reads the world size from torch.distributed; a launcher that sets no RANK leaves it at 1."""
    file, launcher = together.deepspeed, (launcher_of(together, context) or "").lower()
    if file is None or launcher in TELL_THE_RANK or launcher not in SILENT_LAUNCHERS:
        return
    total = whole(file.fields.get("train_batch_size"))
    micro, accumulation = (
        whole(file.fields.get(key)) for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if total and micro and total != micro * (accumulation or 1):
        message = (
            f"`{launcher}` sets no RANK and WORLD_SIZE: where the script does not either, every process takes the "
            f"world for 1, and {total} is not {micro} x {accumulation or 1} x 1"
        )
        edits = (Edit(kind=EditKind.REMOVE, path="$.train_batch_size"),)
        fix = "start with torchrun, accelerate or deepspeed, and leave `train_batch_size` out"
        yield finding("DS311", "$.train_batch_size", message, fix=fix, file=file.name, edits=edits)


def config_file_is_named(together: Together, context: Context) -> Iterator[Problem]:
    """Without --config_file accelerate takes the default file of whoever starts it."""
    launch = together.launch
    if launch is None or launch.fields.get("launcher") != "accelerate":
        return
    flags = section(launch.fields, "launcher_flags")
    if "config_file" not in flags and "use_deepspeed" not in flags:
        message = "accelerate then takes the default file in the cache of whoever starts it, if there is one"
        yield finding(
            "DS312", f"{FLAGS}.config_file", message, fix="name the file with `--config_file`", file=launch.name
        )


def counts_agree(together: Together, context: Context) -> Iterator[Problem]:
    """num_processes is the total of all machines, wherever it is said."""
    yaml, launch = yaml_of(together), together.launch
    in_yaml = whole(yaml.fields.get("num_processes")) if yaml is not None else None
    on_line = whole(launch_flag(together, "num_processes"))
    cluster = context.cluster
    for said, file, path in (
        (on_line, launch.name if launch else "", f"{FLAGS}.num_processes"),
        (in_yaml if on_line is None else None, yaml.name if yaml else "", "$.num_processes"),
    ):
        if said is None or context.ranks is None or said == context.ranks:
            continue
        many = cluster is not None and cluster.nodes > 1 and said == cluster.gpus_per_node
        message = (
            f"{said} is the number of one machine; accelerate wants the total of all"
            if many
            else f"{said} processes for {context.ranks} GPUs"
        )
        edits = (Edit(kind=EditKind.SET, path=path, value=context.ranks),) if file and yaml and path[2] != "l" else ()
        yield finding(
            "DS123",
            path,
            message,
            fix=f"write {context.ranks}",
            severity=Severity.ERROR if many or said > context.ranks else Severity.WARNING,
            bites="silently" if said < context.ranks else "config",
            file=file,
            edits=edits,
        )
    machines = whole(yaml.fields.get("num_machines")) if yaml is not None else None
    if yaml is not None and cluster is not None and machines is not None and machines != cluster.nodes:
        message = f"{machines} machines for {cluster.nodes} nodes"
        fix = f"write {cluster.nodes}"
        edits = (Edit(kind=EditKind.SET, path="$.num_machines", value=cluster.nodes),)
        yield finding("DS123", "$.num_machines", message, fix=fix, file=yaml.name, edits=edits)


def nodes_agree(together: Together, context: Context) -> Iterator[Problem]:
    """Each node has its own file: the same world, another rank."""
    if len(together.accelerate) < 2:
        return
    first = together.accelerate[0]
    ranks: dict[Any, str] = {}
    machines = whole(first.fields.get("num_machines")) or len(together.accelerate)
    for file in together.accelerate:
        rank = file.fields.get("machine_rank", 0)
        if not isinstance(rank, (int, str)):
            continue
        if rank in ranks:
            free = [
                n for n in range(machines) if n not in {f.fields.get("machine_rank", 0) for f in together.accelerate}
            ]
            message = (
                f"`{PurePath(ranks[rank]).name}` has the rank {rank} too: both wait for a machine that never comes"
            )
            edits = (Edit(kind=EditKind.SET, path="$.machine_rank", value=free[0]),) if free else ()
            fix = f"write {free[0]}" if free else "give every machine its own rank"
            yield finding("DS314", "$.machine_rank", message, fix=fix, bites="engine init", file=file.name, edits=edits)
        ranks.setdefault(rank, file.name)
    for file in together.accelerate[1:]:
        for key in MULTINODE:
            here, there = file.fields.get(key), first.fields.get(key)
            if here != there and there not in LOOPBACK:
                message = (
                    f"`{here}` here, `{there}` in `{PurePath(first.name).name}`: the machines do not find one another"
                )
                edits = (Edit(kind=EditKind.SET, path=f"$.{key}", value=there),) if there is not None else ()
                yield finding(
                    "DS314", f"$.{key}", message, fix="write the same", bites="engine init", file=file.name, edits=edits
                )
        blocks = [section(one.fields, "deepspeed_config") for one in (file, first)]
        yield from _blocks_differ(*blocks, file=file.name, first=first.name)


def _blocks_differ(here: Mapping[str, Any], there: Mapping[str, Any], *, file: str, first: str) -> Iterator[Problem]:
    for key in sorted({*here, *there} - {"deepspeed_hostfile"}, key=str):
        if here.get(key) != there.get(key):
            other = PurePath(first).name
            message = f"`{here.get(key)}` here, `{there.get(key)}` in `{other}`: the ranks train different things"
            yield finding(
                "DS314", f"$.deepspeed_config.{key}", message, fix="write the same", bites="engine init", file=file
            )


def deepspeed_and_fsdp(together: Together, context: Context) -> Iterator[Problem]:
    """One of both shards the model."""
    training, yaml = together.training, yaml_of(together)
    if training is None:
        return
    has_deepspeed = bool(argument(together, "deepspeed")) or deepspeed_yaml(together) is not None
    if fsdp_is_argued(together) and has_deepspeed:
        yield finding(
            "DS304",
            "$.fsdp",
            "the Trainer refuses `fsdp` together with DeepSpeed",
            fix="leave one of them out",
            file=training.name,
            edits=(Edit(kind=EditKind.REMOVE, path="$.fsdp"),),
        )
    if argument(together, "deepspeed") and yaml is not None and yaml.fields.get("distributed_type") == "FSDP":
        message = "the YAML starts FSDP, and the arguments name a DeepSpeed file"
        fix = "write DEEPSPEED here, or leave `deepspeed` out of the arguments"
        yield finding("DS304", "$.distributed_type", message, fix=fix, file=yaml.name)


def arguments_go_with_deepspeed(together: Together, context: Context) -> Iterator[Problem]:
    """What the Trainer refuses as soon as DeepSpeed is on."""
    training = together.training
    on = bool(argument(together, "deepspeed")) or together.deepspeed is not None or deepspeed_yaml(together) is not None
    if training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if argument_is_on(together, "fp16") and argument_is_on(together, "bf16"):
        message = "`fp16` and `bf16` are both set: the Trainer refuses the pair"
        yield finding("DS306", "$.fp16", message, fix="leave one of them out", file=training.name)
    if not on:
        return
    stage = zero_stage(together)
    if argument_is_on(together, "auto_find_batch_size") and stage is not None and stage.value == 3:
        message = "the Trainer refuses `auto_find_batch_size` with ZeRO-3"
        yield finding("DS305", "$.auto_find_batch_size", message, fix="set the batch size", file=training.name)
    if argument_is_on(together, "save_only_model") and argument_is_on(together, "load_best_model_at_end"):
        message = "the Trainer refuses `save_only_model` with `load_best_model_at_end` under DeepSpeed"
        yield finding("DS305", "$.save_only_model", message, fix="leave one of them out", file=training.name)
    only_eval = argument_is_on(together, "do_eval", "do_predict") and argument(together, "do_train") in (False, "false")
    if only_eval and stage is not None and stage.value != 3:
        message = "evaluation without training needs ZeRO-3: the Trainer refuses any other stage"
        yield finding("DS305", "$.do_eval", message, fix="use stage 3, or no DeepSpeed", file=training.name)


def total_batch_is_logged_wrong(together: Together, context: Context) -> Iterator[Problem]:
    """The Trainer learns of AutoTP from its own `deepspeed` argument only."""
    file, yaml = together.deepspeed, deepspeed_yaml(together)
    if file is None or together.training is None or yaml is None or named_file(yaml.fields) is None:
        return
    size = section(file.fields, "tensor_parallel").get("autotp_size")
    if isinstance(size, int) and size > 1 and not argument(together, "deepspeed"):
        message = f"the Trainer does not see it through the YAML: the total batch in its log is {size} times too large"
        fix = "name the file in `TrainingArguments(deepspeed=...)`"
        yield finding("DS315", "$.tensor_parallel.autotp_size", message, fix=fix, file=file.name)


RULES = (
    overruled_flags,
    flags_instead_of_a_file,
    two_files,
    ranks_are_told,
    config_file_is_named,
    counts_agree,
    nodes_agree,
    deepspeed_and_fsdp,
    arguments_go_with_deepspeed,
    total_batch_is_logged_wrong,
)
