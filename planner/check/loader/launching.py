"""What `accelerate launch` refuses in its YAML, and what the worker's plugin refuses of it.

In: the document. Out: places with reasons. Answers: do accelerate's loader, the merge into the launch arguments, the
environment and the plugin that the worker makes of it all take the file? Followed branch by branch in accelerate 1.15:
commands/config/config_args.py, commands/launch.py (`_validate_launch_command`), utils/launch.py (`prepare_*`),
utils/dataclasses.py (DeepSpeedPlugin, FullyShardedDataParallelPlugin) and parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from planner.check.loader.lax import FALSE_WORDS, TRUE_WORDS
from planner.check.loader.typed import parses

Refusals = Iterator[tuple[str, str]]

DISTRIBUTED_TYPES = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "DEEPSPEED"),
    *("FSDP", "XLA", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON"),
)
SECTIONS = (
    *("fp8_config", "deepspeed_config", "fsdp_config", "parallelism_config", "megatron_lm_config"),
    *("mpirun_config", "dynamo_config"),
)
PREFIXES = {"fsdp_config": "fsdp", "fp8_config": "fp8", "dynamo_config": "dynamo_"}
BACKENDS = (
    *("NO", "EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS", "OFI", "FX2TRT"),
    *("ONNXRT", "TENSORRT", "AOT_TORCHXLA_TRACE_ONCE", "TORCHXLA_TRACE_ONCE", "TVM", "HPU_BACKEND", "NEURON"),
)
PRECISIONS = ("no", "fp8", "fp16", "bf16")
SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "_HYBRID_SHARD_ZERO2")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
# accelerate refuses these beside deepspeed_config_file, with null too
ONE_HOME = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device"),
    *("offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model"),
)
FSDP_DEFAULTS = {
    "fsdp_version": "1",
    "fsdp_sharding_strategy": "FULL_SHARD",
    "fsdp_reshard_after_forward": "true",
    "fsdp_offload_params": "false",
    "fsdp_min_num_params": 100000000,
    "fsdp_forward_prefetch": "false",
    "fsdp_use_orig_params": "true",
    "fsdp_cpu_ram_efficient_loading": "true",
    "fsdp_sync_module_states": "true",
    "fsdp_activation_checkpointing": "false",
    "fsdp_activation_checkpointing_offload": "false",
}
SIZES = tuple(f"parallelism_config_{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp"))
A_NUMBER, A_SWITCH = "a whole number is needed", "true or false is needed"


class Arguments:
    """The launch arguments that the file sets, each with the path that set it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.values: dict[str, tuple[Any, str]] = {}
        sections: dict[str, Mapping[Any, Any]] = {}
        for name, value in config.items():
            if isinstance(value, Mapping):  # every mapping is taken apart, wherever it stands
                sections[name] = value
            elif name not in ("compute_environment", "mixed_precision", "distributed_type"):
                self.values[name] = (value, f"$.{name}")
        for name in (*(name for name in sections if name not in SECTIONS), *SECTIONS):
            for key, value in sections.get(name, {}).items():
                prefix = PREFIXES.get(name, "")
                full = key if not prefix or str(key).startswith(prefix) else f"{prefix.removesuffix('_')}_{key}"
                self.values[full] = (value, f"$.{name}.{key}")

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default of the command line."""
        return self.values[name][0] if name in self.values else default

    def path(self, name: str) -> str:
        """The place that set it."""
        return self.values[name][1] if name in self.values else f"$.{name}"


def launch_refusals(config: Mapping[str, Any]) -> dict[str, str]:
    """The places that accelerate stumbles over, except unknown keys; empty where the worker gets its plugin."""
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        return {"$.compute_environment": "accelerate 1.15 starts jobs on this machine only"}
    found: dict[str, str] = {}
    arguments = Arguments(_with_old_names(config))
    for part in (_document(config, arguments), _counts(config, arguments), _started(config, arguments)):
        for path, reason in part:
            found.setdefault(path, reason)
    return found


def _with_old_names(config: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(config)
    if "dynamo_backend" in new:
        backend = new.pop("dynamo_backend")
        new["dynamo_config"] = {} if backend == "NO" else {"dynamo_backend": backend}
    return new


def kind_of_launch(config: Mapping[str, Any]) -> str:
    """`deepspeed`, `several` for the launchers of torch, or `simple`."""
    kind = config.get("distributed_type")
    if kind == "DEEPSPEED":
        return "deepspeed"
    several = isinstance(kind, str) and (kind in ("FSDP", "MEGATRON_LM") or _is_multi_gpu(config))
    return "several" if several else "simple"


def _is_multi_gpu(config: Mapping[str, Any]) -> bool:
    kind = config.get("distributed_type")
    return isinstance(kind, str) and kind.startswith("MULTI_") and kind != "MULTI_CPU"


def _document(config: Mapping[str, Any], arguments: Arguments) -> Refusals:
    if "distributed_type" not in config:
        yield "$.distributed_type", "missing"
    kind = config.get("distributed_type")
    if isinstance(kind, str) and kind not in DISTRIBUTED_TYPES:
        yield "$.distributed_type", "no such type"
    gpus = config.get("gpu_ids")
    if gpus is not None and not isinstance(gpus, str):
        yield "$.gpu_ids", "text is needed"
    if arguments.get("gpu_ids") is not None and not isinstance(arguments.get("gpu_ids"), str):
        yield arguments.path("gpu_ids"), "text is needed"
    if isinstance(config.get("use_cpu"), Mapping) and "use_cpu" not in arguments:
        yield "$.use_cpu", A_SWITCH
    for name, section in config.items():
        for key in section if isinstance(section, Mapping) else ():
            if not isinstance(key, str):
                yield f"$.{name}.{key}", "the key is no text"


def _counts(config: Mapping[str, Any], arguments: Arguments) -> Refusals:
    """Processes, machines and ports as the launcher computes with them."""
    processes = arguments.get("num_processes")
    machines = arguments.get("num_machines", None if "num_machines" in config else 1)
    if processes == -1:
        yield arguments.path("num_processes"), "the number has to come from the command line"
    if not isinstance(machines, (int, float)):
        yield arguments.path("num_machines"), A_NUMBER
        return
    gpus = config.get("gpu_ids")
    if _is_multi_gpu(config) and isinstance(gpus, str) and gpus != "all" and "," not in gpus and machines <= 1:
        yield "$.gpu_ids", "two or more GPUs are needed"
    rank = arguments.get("machine_rank", None if "machine_rank" in config else 0)
    kind = kind_of_launch(config)
    through_ssh = kind == "deepspeed" and arguments.get("deepspeed_multinode_launcher") != "standard"
    if machines > 1:
        filtered = any(arguments.get(f"deepspeed_{word}clusion_filter") is not None for word in ("ex", "in"))
        divided = kind != "simple" and not (through_ssh and filtered)
        if divided and "num_processes" in config and not isinstance(processes, (int, float)):
            yield arguments.path("num_processes"), A_NUMBER
        if kind != "simple" and not parses(int, rank):
            yield arguments.path("machine_rank"), A_NUMBER
    port = arguments.get("main_process_port")
    checked = machines <= 1 or (parses(int, rank) and int(rank) == 0)
    if kind != "simple" and checked and port is not None and not (isinstance(port, int) and 0 <= port < 65536):
        yield arguments.path("main_process_port"), "a port is needed"
    if arguments.get("use_cpu") and "num_processes" in config and not isinstance(processes, (int, float)):
        yield arguments.path("num_processes"), A_NUMBER


def _is_count(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _started(config: Mapping[str, Any], arguments: Arguments) -> Refusals:
    precision, path = _precision(config, arguments)
    if precision is not None and not (isinstance(precision, str) and precision.lower() in PRECISIONS):
        yield path, f"one of {', '.join(PRECISIONS)}, in quotes"
    kind = kind_of_launch(config)
    if kind == "deepspeed":
        yield from _deepspeed(config, arguments)
    else:
        backend = arguments.get("dynamo_backend")
        if backend is not None and not (isinstance(backend, str) and backend.upper() in BACKENDS):
            yield arguments.path("dynamo_backend"), "no such backend"
        if not isinstance(arguments.get("dynamo_mode", "default"), str):
            yield arguments.path("dynamo_mode"), "text is needed"
    if kind == "simple":
        yield from _simple(arguments)
    elif config.get("distributed_type") == "FSDP":
        yield from _fsdp(arguments)
    if kind != "simple" and config.get("parallelism_config") not in (None, {}):
        yield from _parallelism(arguments)


def _precision(config: Mapping[str, Any], arguments: Arguments) -> tuple[Any, str]:
    if arguments.get("mixed_precision"):
        return arguments.get("mixed_precision"), arguments.path("mixed_precision")
    if "mixed_precision" not in config and config.get("fp16"):
        return "fp16", "$.fp16"
    return config.get("mixed_precision"), "$.mixed_precision"


def _deepspeed(config: Mapping[str, Any], arguments: Arguments) -> Refusals:
    section = config.get("deepspeed_config")
    if section is not None and not isinstance(section, Mapping):
        yield "$.deepspeed_config", "a section is needed"
        return
    section = section or {}
    file = arguments.get("deepspeed_config_file")
    has_file = file is not None and str(file) != "none"
    if file == "":
        yield arguments.path("deepspeed_config_file"), "empty"
    if has_file:
        for key in (key for key in (*ONE_HOME, "mixed_precision") if key in section):
            yield f"$.deepspeed_config.{key}", "not beside `deepspeed_config_file`"
        if _precision(config, arguments)[0] is not None and not arguments.get("mixed_precision"):
            yield _precision(config, arguments)[1], "not beside `deepspeed_config_file`"
    accumulation = arguments.get("gradient_accumulation_steps")
    if accumulation is not None and not has_file:
        text = str(accumulation)
        if text != "auto" and not (text.isdigit() and int(text) > 0):
            yield arguments.path("gradient_accumulation_steps"), "a whole number above 0 is needed"
    clipping = arguments.get("gradient_clipping")
    if clipping is not None and str(clipping).lower() != "auto" and not parses(float, str(clipping)):
        yield arguments.path("gradient_clipping"), "a number is needed"
    stage = arguments.get("zero_stage")
    if stage is not None and not parses(int, str(stage)):
        yield arguments.path("zero_stage"), A_NUMBER
    elif stage is not None and not has_file and int(str(stage)) not in (0, 1, 2, 3):
        yield arguments.path("zero_stage"), "0, 1, 2 or 3"
    for name in ("offload_optimizer_device", "offload_param_device"):
        device = arguments.get(name)
        if device is not None and not has_file and str(device).lower() not in ("none", "cpu", "nvme", "auto"):
            yield arguments.path(name), "none, cpu or nvme"
    init = arguments.get("zero3_init_flag")
    if init is not None and not _is_switch(init):
        yield arguments.path("zero3_init_flag"), A_SWITCH


def _is_switch(value: Any) -> bool:
    return str(value).lower() in TRUE_WORDS | FALSE_WORDS


def _simple(arguments: Arguments) -> Refusals:
    processes, machines = arguments.get("num_processes"), arguments.get("num_machines", 1)
    if not _is_switch(arguments.get("use_cpu", False)):
        yield arguments.path("use_cpu"), A_SWITCH
    if not _is_count(processes):
        yield arguments.path("num_processes"), A_NUMBER
        return
    if not isinstance(machines, (int, float)):
        return
    address = arguments.get("main_process_ip")
    if machines > 1:
        for name in ("main_process_ip", "main_process_port"):
            if arguments.get(name) is None:
                yield arguments.path(name), "needed with several machines"
    if address is not None and not isinstance(address, str) and ((processes or 0) > 1 or machines > 1):
        yield arguments.path("main_process_ip"), "text is needed"


def _parallelism(arguments: Arguments) -> Refusals:
    for name in SIZES:
        size = arguments.get(name, 1)
        compared = name.endswith(("_cp_size", "_sp_size"))
        if (compared and not isinstance(size, (int, float))) or not parses(int, str(size)) or int(str(size)) < 1:
            yield arguments.path(name), "a whole number from 1 is needed"
            return
    replicate, shard, tp, cp, sp = (int(str(arguments.get(name, 1))) for name in SIZES)
    for word, backend in (("cp", "torch"), ("sp", "deepspeed")):
        name = f"parallelism_config_{word}_backend"
        if str(arguments.get(name, backend)) != backend:
            yield arguments.path(name), f"only {backend}"
    if cp > 1 and sp > 1:
        yield arguments.path(SIZES[3]), "not together with sequence parallelism"
    if (tp > 1 or cp > 1) and replicate > 1 and shard == 1:
        yield arguments.path(SIZES[0]), "not together with tensor or context parallelism alone"
    strategy = arguments.get("parallelism_config_cp_comm_strategy", "allgather")
    if cp > 1 and str(strategy) not in ("allgather", "alltoall"):
        yield arguments.path("parallelism_config_cp_comm_strategy"), "allgather or alltoall"


def _fsdp(arguments: Arguments) -> Refusals:
    """FullyShardedDataParallelPlugin, from the words in the environment."""

    def given(name: str) -> Any:
        return arguments.get(name, FSDP_DEFAULTS.get(name))

    version = str(given("fsdp_version"))
    if not parses(int, version) or int(version) not in (1, 2):
        yield arguments.path("fsdp_version"), "1 or 2"
        return
    first = int(version) == 1
    if given("fsdp_cpu_ram_efficient_loading") and not given("fsdp_sync_module_states"):
        yield arguments.path("fsdp_sync_module_states"), "true is needed with `fsdp_cpu_ram_efficient_loading`"
    switches = ["offload_params", "activation_checkpointing", "activation_checkpointing_offload"]
    switches += ["cpu_ram_efficient_loading"]
    switches += ["use_orig_params", "sync_module_states", "forward_prefetch"] if first else ["reshard_after_forward"]
    for name in (f"fsdp_{switch}" for switch in switches):
        if not _is_switch(given(name)):
            yield arguments.path(name), A_SWITCH
    if first and not _names(given("fsdp_sharding_strategy"), SHARDING, range(1, 6)):
        yield arguments.path("fsdp_sharding_strategy"), f"one of {', '.join(SHARDING[:5])}"
    prefetch = given("fsdp_backward_prefetch")
    words = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
    if prefetch is not None and not _names(prefetch, words, range(1, 3)):
        yield arguments.path("fsdp_backward_prefetch"), f"one of {', '.join(words)}"
    state = given("fsdp_state_dict_type")
    if state is not None and not _names(state, STATE_DICTS, range(1, 4)):
        yield arguments.path("fsdp_state_dict_type"), f"one of {', '.join(STATE_DICTS)}"
    elif not first and str(state).upper() in ("LOCAL_STATE_DICT", "2"):
        yield arguments.path("fsdp_state_dict_type"), "not with FSDP 2"
    wrap = given("fsdp_auto_wrap_policy")
    if wrap is not None and str(wrap).upper() not in WRAPS:
        yield arguments.path("fsdp_auto_wrap_policy"), f"one of {', '.join(WRAPS)}"
    size_based = wrap is not None and str(wrap).upper() == "SIZE_BASED_WRAP"
    if size_based and not parses(int, str(given("fsdp_min_num_params"))):
        yield arguments.path("fsdp_min_num_params"), A_NUMBER
    offload = str(given("fsdp_activation_checkpointing_offload")).lower() in TRUE_WORDS
    if offload and (first or str(given("fsdp_activation_checkpointing")).lower() not in TRUE_WORDS):
        path = arguments.path("fsdp_activation_checkpointing_offload")
        yield path, "needs FSDP 2 and `fsdp_activation_checkpointing`"


def _names(value: Any, words: Iterable[str], numbers: Iterable[int]) -> bool:
    text = str(value)
    return text.upper() in words or (text.isdigit() and int(text) in numbers)
