"""What an Accelerate configuration gets wrong although each of its keys and values is allowed.

In: the document, and the DeepSpeed document it names if that is at hand. Out: Problems. Answers: does the launch start
as many processes as meant, with the DeepSpeed settings meant?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.one_file.deepspeed_rules import section, tp_of
from planner.check.one_file.parallel_rules import parallel_problems
from planner.check.reading.arguments import is_told
from planner.check.rules import finding, rename, take_out, write
from planner.records.problem import Problem, Severity

# accelerate refuses these beside deepspeed_config_file (accelerate 1.15, DeepSpeedPlugin)
OWNED_BY_THE_FILE = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
    *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
)
HERE = "$.deepspeed_config"
LOOPBACK = ("localhost", "127.0.0.1", "0.0.0.0")  # on every machine it means the machine itself
STARTED = ("deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config")


def accelerate_problems(config: Any) -> list[Problem]:
    """Every rule that needs this file only."""
    if not isinstance(config, Mapping):
        return [
            finding("DS001", "$", "an Accelerate configuration is one YAML mapping", fix="write `key: value` lines")
        ]
    problems = [*_false_for_no(config), *_counts(config), *_parallelism(config), *parallel_problems(config)]
    problems += _meeting_point(config)
    if config.get("distributed_type") == "DEEPSPEED":
        problems += [*_two_homes(config), *_host_file(config), *_yaml_offload(config), *_yaml_alone(config)]
    return problems


def pair_problems(accelerate: Mapping[str, Any], deepspeed: Mapping[str, Any], deepspeed_name: str) -> list[Problem]:
    """Rules across the YAML and the JSON it names: the ranks, and what they mean for batch and tensor parallelism."""
    ranks = accelerate.get("num_processes")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        return []
    problems = []
    tp = tp_of(deepspeed)
    if ranks % tp:
        message = f"`autotp_size` {tp} does not divide {ranks} processes"
        problems.append(
            finding("DS051", "$.tensor_parallel.autotp_size", message, fix="choose a divisor", file=deepspeed_name)
        )
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (deepspeed.get(name) for name in names)
    accumulation = 1 if accumulation is None else accumulation
    if all(isinstance(value, int) and not isinstance(value, bool) for value in (total, micro, accumulation)):
        product = micro * accumulation * ranks  # type: ignore[operator]
        if total != product:
            message = (
                f"`{total}` is not micro-batch x accumulation x ranks = {micro} x {accumulation} x {ranks} = {product}"
            )
            problems.append(
                finding("DS021", "$.train_batch_size", message, fix="leave `train_batch_size` out", file=deepspeed_name)
            )
    return problems


def _false_for_no(config: Mapping[str, Any]) -> Iterator[Problem]:
    for key in ("mixed_precision", "distributed_type"):
        if config.get(key) is False:
            message, fix = "an unquoted `no` is false in YAML", "write 'no' in quotes"
            if key == "mixed_precision":
                yield finding("DS112", f"$.{key}", message, fix=fix, edits=write(f"$.{key}", "no"))
            else:
                severity = Severity.ERROR if any(section(config, name) for name in STARTED) else Severity.WARNING
                yield finding("DS112", f"$.{key}", message, fix=fix, severity=severity, bites="silently")


def _counts(config: Mapping[str, Any]) -> Iterator[Problem]:
    processes, machines, rank = (config.get(key) for key in ("num_processes", "num_machines", "machine_rank"))
    if not isinstance(machines, int) or isinstance(machines, bool) or machines < 1:
        return
    if isinstance(processes, int) and processes > 0 and processes % machines:
        message = f"{processes} processes cannot be shared out over {machines} machines; the number is the total of all"
        fix = "write GPUs per machine x machines"
        yield finding("DS123", "$.num_processes", message, fix=fix, bites="silently")
    shown = config.get("gpu_ids")
    cards = len(str(shown).split(",")) if isinstance(shown, (str, int)) and shown not in ("all", "") else None
    if cards is not None and machines == 1 and isinstance(processes, int) and processes > cards:
        message = f"{processes} processes for the {cards} GPUs of `gpu_ids`, the only ones that they see"
        yield finding("DS123", "$.num_processes", message, fix=f"write {cards}", bites="engine init")
    if isinstance(rank, int) and rank >= machines:
        message = f"`{rank}` is no rank of {machines} machines"
        yield finding("DS123", "$.machine_rank", message, fix=f"0 to {machines - 1}", bites="launch")


def _parallelism(config: Mapping[str, Any]) -> Iterator[Problem]:
    prefix = "parallelism_config_"
    for key, value in section(config, "parallelism_config").items():
        path = f"$.parallelism_config.{key}"
        if not str(key).startswith(prefix):
            message, edits = f"accelerate reads `{prefix}{key}` only", rename(path, f"{prefix}{key}")
            yield finding("DS126", path, message, fix=f"write `{prefix}{key}`", edits=edits)
        elif key == f"{prefix}tp_size" and value != 1 and config.get("distributed_type") == "DEEPSPEED":
            message = "with DeepSpeed this switches no tensor parallelism on"
            fix = "set `tensor_parallel.autotp_size` in the DeepSpeed file"
            yield finding("DS126", path, message, fix=fix, edits=take_out(path))


def _meeting_point(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Where torch's launcher starts every machine, all of them meet at one address and port."""
    machines = config.get("num_machines", 1)
    if not isinstance(machines, int) or isinstance(machines, bool) or machines < 2:
        return
    launcher = section(config, "deepspeed_config").get("deepspeed_multinode_launcher") or "pdsh"
    if config.get("distributed_type") == "DEEPSPEED" and launcher != "standard":
        return
    here = "main_process_port" in config or "main_process_ip" in config or config.get("machine_rank")
    if here and not config.get("main_process_ip"):  # else all of it comes with the command line
        message = "without the address of the first machine the others do not find it"
        fix = "add the address, or give `--main_process_ip` on the command line"
        yield finding("DS130", "$.main_process_ip", message, fix=fix, severity=Severity.WARNING)
    if config.get("main_process_ip") in LOOPBACK and config.get("machine_rank"):
        message = (
            f"on machine {config['machine_rank']} `{config['main_process_ip']}` is that machine, not the first one"
        )
        yield finding("DS130", "$.main_process_ip", message, fix="write the address of the first machine")
    if not is_told(config.get("main_process_ip")):
        message = f"`{config['main_process_ip']}` stays as it is: a YAML knows no variables"
        fix = "write the address, or give `--main_process_ip` on the command line"
        yield finding("DS130", "$.main_process_ip", message, fix=fix)
    if config.get("main_process_port") == 0:
        message = "0 takes a free port, another one on every machine"
        edits = write("$.main_process_port", 29500)
        yield finding("DS130", "$.main_process_port", message, fix="write one port, 29500", edits=edits)


def _two_homes(config: Mapping[str, Any]) -> Iterator[Problem]:
    deepspeed = section(config, "deepspeed_config")
    if deepspeed.get("deepspeed_config_file") is None:
        return
    for key in OWNED_BY_THE_FILE:
        if key in deepspeed:  # with null too
            message = f"accelerate refuses `{key}` beside `deepspeed_config_file`"
            path, fix = f"{HERE}.{key}", "keep it in the DeepSpeed file only"
            yield finding("DS120", path, message, fix=fix, edits=take_out(path))
    if config.get("mixed_precision") is not None:
        message = "accelerate refuses `mixed_precision` beside `deepspeed_config_file`"
        yield finding("DS120", "$.mixed_precision", message, fix="keep `bf16` or `fp16` in the DeepSpeed file only")


def _host_file(config: Mapping[str, Any]) -> Iterator[Problem]:
    deepspeed, machines = section(config, "deepspeed_config"), config.get("num_machines", 1)
    launcher = deepspeed.get("deepspeed_multinode_launcher") or "pdsh"
    needs_hosts = launcher != "standard" and not deepspeed.get("deepspeed_hostfile")
    if launcher == "standard" and deepspeed.get("deepspeed_hostfile"):
        message = "the launcher `standard` does not read it: every machine starts its own processes"
        path, fix = f"{HERE}.deepspeed_hostfile", "leave it out, or use the launcher pdsh"
        yield finding("DS132", path, message, fix=fix, edits=take_out(path))
    if isinstance(machines, int) and machines > 1 and needs_hosts:
        message = f"with launcher `{launcher}` and no `deepspeed_hostfile`, {machines} machines become one"
        fix = "set `deepspeed_multinode_launcher: standard` and start it on every node, or name a host file"
        path = f"{HERE}.deepspeed_multinode_launcher"
        yield finding("DS122", path, message, fix=fix, edits=write(path, "standard"))


def _yaml_offload(config: Mapping[str, Any]) -> Iterator[Problem]:
    deepspeed = section(config, "deepspeed_config")
    for key in ("offload_optimizer_nvme_path", "offload_param_nvme_path"):
        if deepspeed.get(key) not in (None, "none"):
            message = "`accelerate launch` does not pass the path on"
            yield finding(
                "DS124", f"{HERE}.{key}", message, fix="write a DeepSpeed file and name it in `deepspeed_config_file`"
            )
    if deepspeed.get("deepspeed_config_file") is not None:
        return
    stage = deepspeed.get("zero_stage", 2)
    optimizer, params = (
        str(deepspeed.get(f"offload_{part}_device") or "none").lower() for part in ("optimizer", "param")
    )
    if params != "none" and stage in (0, 1, 2):
        message = f"parameters are not offloaded at stage {stage}"
        path = f"{HERE}.offload_param_device"
        yield finding("DS125", path, message, fix="use stage 3, or write none", edits=write(path, "none"))
    if optimizer == "nvme" and stage in (1, 2):
        path, message = (
            f"{HERE}.offload_optimizer_device",
            f"stage {stage} keeps the states in host memory, not on NVMe",
        )
        yield finding("DS125", path, message, fix="use stage 3, or write cpu")
    for part, device in (("optimizer", optimizer), ("param", params)):
        if device == "nvme" and stage == 3 and deepspeed.get(f"offload_{part}_nvme_path") in (None, "none"):
            message = "the YAML has no way to say where: DeepSpeed gets `none` for a path"
            fix = "write a DeepSpeed file with `nvme_path` and name it in `deepspeed_config_file`"
            yield finding("DS124", f"{HERE}.offload_{part}_device", message, fix=fix)
    if optimizer != "none" and stage == 0:
        path, message = f"{HERE}.offload_optimizer_device", "nothing is offloaded at stage 0"
        yield finding("DS125", path, message, fix="use stage 1 or above, or write none", edits=write(path, "none"))


def _yaml_alone(config: Mapping[str, Any]) -> Iterator[Problem]:
    """The DeepSpeed settings that accelerate makes of the YAML itself."""
    deepspeed = section(config, "deepspeed_config")
    if deepspeed.get("deepspeed_config_file") is not None:
        return
    stage = deepspeed.get("zero_stage", 2)
    if stage == 3 and deepspeed.get("zero3_save_16bit_model") not in (True, "true"):
        path = f"{HERE}.zero3_save_16bit_model"
        message = "with stage 3 saving writes no whole model"
        edits = () if "zero3_save_16bit_model" in deepspeed else write(path, value=True)  # false may be meant
        yield finding("DS045", path, message, fix="set `zero3_save_16bit_model` to true", edits=edits)
    if stage in (0, 1, 2) and deepspeed.get("zero3_init_flag") is True:
        path = f"{HERE}.zero3_init_flag"
        message = f"accelerate warns at stage {stage} and switches it off"
        edits = write(path, value=False)
        yield finding("DS132", path, message, fix="write false", edits=edits)
    idle = {"zero3_save_16bit_model": (True, "true"), "deepspeed_moe_layer_cls_names": None}
    for key, values in idle.items():
        given = deepspeed.get(key)
        if stage in (0, 1, 2) and given is not None and (values is None or given in values):
            path, message = f"{HERE}.{key}", f"without effect at stage {stage}: nothing is gathered there"
            yield finding("DS132", path, message, fix="leave it out", edits=take_out(path))
    clipping = deepspeed.get("gradient_clipping")
    if isinstance(clipping, (int, float)) and not isinstance(clipping, bool) and clipping == 0:
        message = "accelerate leaves 0 out of what it hands on, and DeepSpeed then clips at 1.0"
        fix = 'write a DeepSpeed file with `"gradient_clipping": 0`'
        yield finding("DS302", f"{HERE}.gradient_clipping", message, fix=fix)
