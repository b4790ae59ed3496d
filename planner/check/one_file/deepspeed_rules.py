"""What a DeepSpeed configuration gets wrong although each of its keys and values is allowed.

In: the document. Out: Problems. Answers: which settings contradict each other, do nothing, or fail later? One small
function a rule; each reads the document and yields what it finds. All were seen in DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from planner.check.rules import finding, rename, take_out, write
from planner.errors import nearest
from planner.records.problem import Edit, Problem, Severity

ZERO = "$.zero_optimization"
STAGE_3_SIZES = (
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_model_persistence_threshold"),
    *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold"),
)
QUANTISED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")
PRESETS = ("llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3")
GATHER = "stage3_gather_16bit_weights_on_model_save"


def deepspeed_problems(config: Any) -> list[Problem]:
    """Every rule of this module over one document."""
    if not isinstance(config, Mapping):
        return [finding("DS001", "$", "a DeepSpeed configuration is one JSON object", fix="write `{...}`")]
    return [problem for rule in RULES for problem in rule(config)]


def section(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A nested section; empty where it is absent or no section."""
    for key in keys:
        inner = config.get(key)
        config = inner if isinstance(inner, Mapping) else {}
    return config


def stage_of(config: Mapping[str, Any]) -> int:
    """The ZeRO stage as the engine will see it: absent and "auto" mean 0, a bare `true` means 1."""
    zero = config.get("zero_optimization")
    if isinstance(zero, bool):
        return int(zero)
    stage = section(config, "zero_optimization").get("stage", 0)
    if isinstance(stage, str) and stage.strip().isdigit():
        stage = int(stage)
    return int(stage) if isinstance(stage, (int, float)) and stage in (0, 1, 2, 3) else 0


def tp_of(config: Mapping[str, Any]) -> int:
    """The tensor-parallel degree; 0 and 1 are off."""
    size = section(config, "tensor_parallel").get("autotp_size", 0)
    return size if isinstance(size, int) and size > 1 else 1


def device_of(config: Mapping[str, Any], block: str) -> str:
    """`none`, `cpu` or `nvme` of `offload_optimizer` or `offload_param`, the old spellings included."""
    zero = section(config, "zero_optimization")
    old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[block]
    if zero.get(old) is True:
        return "cpu"
    device = section(zero, block).get("device", "none")
    return device if isinstance(device, str) else "none"


def is_on(config: Mapping[str, Any], name: str) -> bool:
    """Whether `fp16`, `bf16` or the like is switched on."""
    return section(config, name).get("enabled") is True


def batch_size_is_given(config: Mapping[str, Any]) -> Iterator[Problem]:
    if config.get("train_batch_size") is None and config.get("train_micro_batch_size_per_gpu") is None:
        path = "$.train_micro_batch_size_per_gpu"
        yield finding("DS020", path, "no batch size is given", fix="add `train_micro_batch_size_per_gpu`")


def preset_is_known(config: Mapping[str, Any]) -> Iterator[Problem]:
    preset = section(config, "tensor_parallel").get("preset_model")
    if isinstance(preset, str) and preset.lower() not in PRESETS:
        message = f"there is no preset `{preset}`; DeepSpeed then takes the model's own plan"
        fix = f"one of {', '.join(PRESETS)}, or leave it out"
        near = nearest(preset.lower(), PRESETS, limit=1)
        path = "$.tensor_parallel.preset_model"
        edits = write(path, near[0]) if near else take_out(path)
        yield finding("DS011", path, message, fix=fix, severity=Severity.WARNING, edits=edits)


def batch_sizes_divide(config: Mapping[str, Any]) -> Iterator[Problem]:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (config.get(name) for name in names)
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        return
    part = 1
    for value in (micro, accumulation):
        part *= value if isinstance(value, int) and value > 0 else 1
    if total % part:
        message = f"`{total}` is no multiple of micro-batch x accumulation = {part}"
        edits = take_out("$.train_batch_size") if micro is not None else ()
        yield finding("DS021", "$.train_batch_size", message, fix="leave `train_batch_size` out", edits=edits)
    elif micro is not None:
        ranks = "all ranks, tensor-parallel ones too"
        if (whole := config.get("sequence_parallel_size")) not in (None, 1):
            ranks = f"the ranks over `sequence_parallel_size` {whole}"
        message = f"the total batch has to be micro-batch x accumulation x {ranks}"
        counted = accumulation is not None  # else the total gives it
        fix = "leave `train_batch_size` out" if counted else "write `gradient_accumulation_steps` in its place"
        yield finding("DS022", "$.train_batch_size", message, fix=fix)


def one_precision(config: Mapping[str, Any]) -> Iterator[Problem]:
    bf16 = "bf16" if "bf16" in config else "bfloat16"
    if is_on(config, "fp16") and is_on(config, bf16):
        yield finding("DS030", "$.fp16.enabled", f"`fp16` and `{bf16}` are both on", fix="switch one of them off")


def dynamic_loss_scale(config: Mapping[str, Any]) -> Iterator[Problem]:
    scale = section(config, "fp16").get("loss_scale", 0)
    if isinstance(scale, float) and not isfinite(scale):
        yield finding("DS013", "$.fp16.loss_scale", f"`{scale}` is no loss scale", fix="write 0 for dynamic scaling")
    elif is_on(config, "fp16") and isinstance(scale, (int, float)) and scale != 0:
        message = f"`loss_scale` {scale} is fixed; an overflow then stops the run"
        yield finding("DS031", "$.fp16.loss_scale", message, fix="write 0 for dynamic scaling")


def accumulation_dtype(config: Mapping[str, Any]) -> Iterator[Problem]:
    dtype = section(config, "data_types").get("grad_accum_dtype")
    half = is_on(config, "bf16") or is_on(config, "fp16")
    if dtype in ("fp32", "float32", "float", "torch.float32") and half and stage_of(config) == 0:
        message = "without ZeRO the gradients are accumulated in the dtype of the weights"
        path, fix = "$.data_types.grad_accum_dtype", "use stage 1 or above, or leave it out"
        yield finding("DS032", path, message, fix=fix, edits=take_out(path))


def offload_goes_with_stage(config: Mapping[str, Any]) -> Iterator[Problem]:
    stage = stage_of(config)
    if stage < 3 and device_of(config, "offload_param") != "none":
        message = f"`offload_param` does nothing at stage {stage}: the parameters stay on the GPU"
        path = f"{ZERO}.offload_param"
        yield finding("DS040", path, message, fix="use stage 3, or leave it out")
    if stage == 0 and device_of(config, "offload_optimizer") != "none":
        message = "nothing is offloaded at stage 0, and the CPU optimizer refuses parameters on the GPU"
        path = f"{ZERO}.offload_optimizer"
        yield finding("DS041", path, message, fix="use stage 1 or above, or leave it out")
    if stage in (1, 2) and device_of(config, "offload_optimizer") == "nvme":
        message = f"stage {stage} keeps the states in host memory: it only asks whether the device is not `none`"
        path = f"{ZERO}.offload_optimizer.device"
        fix = "use stage 3, or write `cpu` and have the host memory for it"
        yield finding("DS047", path, message, fix=fix)


def nvme_has_a_path(config: Mapping[str, Any]) -> Iterator[Problem]:
    if stage_of(config) < 3:
        return  # nothing goes to NVMe
    for block in ("offload_optimizer", "offload_param"):
        if device_of(config, block) == "nvme" and not section(config, "zero_optimization", block).get("nvme_path"):
            path = f"{ZERO}.{block}.nvme_path"
            yield finding("DS042", path, f"`{block}` goes to NVMe, but no path is given", fix="add `nvme_path`")


def only_at_stage_three(config: Mapping[str, Any]) -> Iterator[Problem]:
    stage, zero = stage_of(config), section(config, "zero_optimization")
    if stage == 3:
        return
    optimizer = section(zero, "offload_optimizer")
    ratio = optimizer.get("ratio", 1.0)
    if isinstance(ratio, (int, float)) and ratio < 1:
        path = f"{ZERO}.offload_optimizer.ratio"
        message = f"a `ratio` below 1 needs stage 3, not {stage}"
        yield finding("DS043", path, message, fix="leave it out", bites="config", edits=take_out(path))
    if optimizer.get("super_offload") is True:
        path = f"{ZERO}.offload_optimizer.super_offload"
        message = f"`super_offload` does nothing at stage {stage}"
        yield finding("DS043", path, message, fix="use stage 3, or leave it out", edits=take_out(path))
    for name in QUANTISED:
        if zero.get(name) is True:
            path, message = f"{ZERO}.{name}", f"`{name}` does nothing at stage {stage}"
            yield finding("DS043", path, message, fix="use stage 3, or leave it out", edits=take_out(path))
    partition = zero.get("zero_hpz_partition_size", 1)
    if isinstance(partition, int) and partition > 1:
        path = f"{ZERO}.zero_hpz_partition_size"
        message = f"`zero_hpz_partition_size` does nothing at stage {stage}"
        yield finding("DS043", path, message, fix="use stage 3, or leave it out", edits=take_out(path))
    for name in STAGE_3_SIZES:
        if name in zero:
            path, message = f"{ZERO}.{name}", f"`{name}` does nothing at stage {stage}"
            yield finding("DS044", path, message, fix="leave it out", edits=take_out(path))


def whole_model_is_saved(config: Mapping[str, Any]) -> Iterator[Problem]:
    zero = section(config, "zero_optimization")
    names = (GATHER, "gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
    given = [zero[name] for name in names if name in zero]
    reason = "stage 3" if stage_of(config) == 3 else f"tensor parallelism {tp_of(config)}" if tp_of(config) > 1 else ""
    if reason and not any(value in (True, "auto") for value in given):
        message = f"with {reason}, saving writes no whole model"
        edits = () if given else write(f"{ZERO}.{GATHER}", value=True)  # false may be meant
        yield finding("DS045", f"{ZERO}.{GATHER}", message, fix=f"set `{GATHER}` to true", edits=edits)


def tensor_parallel_sizes(config: Mapping[str, Any]) -> Iterator[Problem]:
    parallel = section(config, "tensor_parallel")
    inner = section(parallel, "tp").get("tp_size")
    if isinstance(inner, int) and inner > 1 and tp_of(config) == 1:
        path = "$.tensor_parallel.tp.tp_size"
        message, fix = "`tp_size` alone switches nothing on", f"write `autotp_size`: {inner}"
        edits = (*write("$.tensor_parallel.autotp_size", inner), *take_out(path))
        yield finding("DS050", path, message, fix=fix, bites="silently", edits=edits)
    elif isinstance(inner, int) and "tp_size" in section(parallel, "tp") and inner != tp_of(config) > 1:
        path = "$.tensor_parallel.tp.tp_size"
        message = f"`tp_size` {inner} is not `autotp_size` {tp_of(config)}"
        yield finding("DS050", path, message, fix="leave `tp_size` out", edits=take_out(path))


def reduction(config: Mapping[str, Any]) -> Iterator[Problem]:
    stage = stage_of(config)
    if config.get("gradient_allreduce_op") == "sum" and stage == 3:
        path = "$.gradient_allreduce_op"
        message, edits = "stage 3 averages gradients only", write(path, "mean")
        yield finding("DS064", path, message, fix='write "mean"', bites="config", edits=edits)
    if stage < 2 or section(config, "zero_optimization").get("reduce_scatter", True) is not True:
        return
    if config.get("prescale_gradients") is True:
        path = "$.prescale_gradients"
        message = f"not with `reduce_scatter` at stage {stage}"
        yield finding("DS064", path, message, fix="leave it out", edits=take_out(path))
    if config.get("gradient_predivide_factor", 1) != 1:
        path = "$.gradient_predivide_factor"
        message = f"only 1 goes with `reduce_scatter` at stage {stage}"
        yield finding("DS064", path, message, fix="leave it out", edits=take_out(path))


def deprecated_keys(config: Mapping[str, Any]) -> Iterator[Problem]:
    switch = config.get("zero_optimization")
    if isinstance(switch, bool):
        message = f"a bare {str(switch).lower()} means stage {int(switch)}; DeepSpeed warns that the form is deprecated"
        edits = write(ZERO, {"stage": int(switch)})
        yield finding("DS015", ZERO, message, fix=f'write `{{"stage": {int(switch)}}}`', edits=edits)
    zero = section(config, "zero_optimization")
    renamed = {
        "cpu_offload": "offload_optimizer",
        "cpu_offload_param": "offload_param",
        "stage3_gather_fp16_weights_on_model_save": GATHER,
    }
    for old, new in renamed.items():
        if old in zero:
            read = "auto" not in (zero[old], zero.get(new, "auto"))  # "auto" is dropped before the two are compared
            both = read and old != "stage3_gather_fp16_weights_on_model_save"
            message = f"`{old}` is the old name of `{new}`" + (", which is there too" if both else "")
            severity = Severity.ERROR if both else None
            edits = _newer(zero, old, new)
            yield finding("DS015", f"{ZERO}.{old}", message, fix=f"use `{new}` only", severity=severity, edits=edits)


def _newer(zero: Mapping[str, Any], old: str, new: str) -> tuple[Edit, ...]:
    """The same setting under its new name; the old one goes where the new one is there too."""
    path = f"{ZERO}.{old}"
    if new in zero or zero[old] in (False, None):
        return take_out(path)
    if new == GATHER:
        return rename(path, new)
    return (*write(f"{ZERO}.{new}", {"device": "cpu"}), *take_out(path)) if zero[old] is True else ()


RULES: tuple[Callable[[Mapping[str, Any]], Iterator[Problem]], ...] = (
    batch_size_is_given,
    batch_sizes_divide,
    one_precision,
    dynamic_loss_scale,
    accumulation_dtype,
    offload_goes_with_stage,
    nvme_has_a_path,
    only_at_stage_three,
    whole_model_is_saved,
    tensor_parallel_sizes,
    preset_is_known,
    reduction,
    deprecated_keys,
)
