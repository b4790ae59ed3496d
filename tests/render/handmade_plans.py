"""Plans put together by hand, so that rendering and checking are tested without the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment, Phase, Term, TimeEstimate, TimeTerm
from planner.records.machine import Cluster, Gpu, Link
from planner.records.model import AutoTP, ModelShape, Norm, Position, Precision
from planner.records.plan import Evaluation, Limit, Plan, Verdict
from planner.records.request import (
    Attention,
    Axes,
    Integration,
    Launcher,
    Loss,
    Objective,
    Optimizer,
    Request,
    Workload,
)

SETTINGS = ZeroSettings(
    overlap_comm=True,
    reduce_bucket_elements=50_000_000,
    allgather_bucket_elements=50_000_000,
    prefetch_bucket_elements=23_592_960,
    param_persistence_threshold=51_200,
    max_live_parameters=1_000_000_000,
    max_reuse_distance=1_000_000_000,
    sub_group_elements=1_000_000_000,
    pin_memory=True,
    fp32_gradient_accumulation=False,
)
GPU = Gpu(
    name="A100-80G",
    full_name="NVIDIA A100 80 GB SXM",
    memory_bytes=85_094_825_984,
    bf16_flop_per_s=312e12,
    fp16_flop_per_s=312e12,
    fp32_flop_per_s=19.5e12,
    hbm_bytes_per_s=2.0e12,
    gemm_efficiency=0.7,
    attention_efficiency=0.5,
    host_link_bytes_per_s=2.4e10,
    usd_per_hour=2.0,
    tdp_w=400,
    source="test",
)
MODEL = ModelShape(
    name="llama-2-13b",
    model_type="llama",
    hub_id="meta-llama/Llama-2-13b-hf",
    layers=40,
    hidden=5120,
    heads=40,
    kv_heads=40,
    head_dim=128,
    ffn_hidden=13824,
    vocab=32000,
    max_positions=4096,
    tied_embeddings=False,
    gated_mlp=True,
    activation="silu",
    norm=Norm.RMS,
    norms_per_layer=2,
    parallel_block=False,
    qk_norm=False,
    qkv_bias=False,
    attention_output_bias=False,
    mlp_bias=False,
    head_bias=False,
    final_norm=True,
    position=Position.ROTARY,
    autotp=AutoTP.TRAINED,
    source="test",
    hf_config={
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "vocab_size": 32000,
    },
)


def make_cluster(*, nodes: int = 1, gpus_per_node: int = 4, cpu_cores: int | None = None, gpu: Gpu = GPU) -> Cluster:
    return Cluster(
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
        intra_node=Link(name="NVLink 3", bus_bytes_per_s=((2, 2.3e11),), source="test"),
        network_bytes_per_s=None if nodes == 1 else 2.5e10,
        network_name="none" if nodes == 1 else "InfiniBand",
        host_memory_bytes=1024 * 2**30,
        cpu_cores=cpu_cores,
        nvme_bytes=None,
        nvme_read_bytes_per_s=None,
        nvme_write_bytes_per_s=None,
        usd_per_hour=None,
        instance=None,
        source="test",
    )


def make_plan(
    *,
    zero: int = 3,
    tp: int = 1,
    offload: Offload = Offload.NONE,
    precision: Precision = Precision.BF16,
    optimizer: Optimizer = Optimizer.ADAMW,
    launcher: Launcher = Launcher.ACCELERATE,
    cluster: Cluster | None = None,
    model: ModelShape = MODEL,
    checkpointing: Checkpointing = Checkpointing.FULL,
    micro_batch: int = 2,
    accumulation: int = 4,
    settings: ZeroSettings = SETTINGS,
    script: str | None = None,
    script_arguments: tuple[str, ...] = (),
    attention: Attention = Attention.SDPA,
    seq_len: int = 2048,
    loss: Loss = Loss.STANDARD,
    integration: Integration = Integration.TRAINER,
) -> Plan:
    cluster = cluster or make_cluster()
    candidate = Candidate(
        zero=ZeroStage(zero),
        degrees=Degrees(tp=tp, dp=cluster.world_size // tp),
        checkpointing=checkpointing,
        offload=offload,
        micro_batch=micro_batch,
        accumulation=accumulation,
        settings=settings,
    )
    request = Request(
        model=model,
        cluster=cluster,
        workload=Workload(
            seq_len=seq_len,
            global_batch=None,
            accumulation=accumulation,
            precision=precision,
            attention=attention,
            loss=loss,
            tokens=None,
            optimizer=optimizer,
        ),
        axes=Axes(
            zero=tuple(ZeroStage),
            tp=(1, 2, 4),
            checkpointing=tuple(Checkpointing),
            offload=tuple(Offload),
            micro_batch=None,
        ),
        objective=Objective.THROUGHPUT,
        margin=0.05,
        launcher=launcher,
        top=5,
        script=script,
        script_arguments=script_arguments,
        asked=(),
        assumptions=("host memory from the test",),
        integration=integration,
    )
    return Plan(request=request, ranked=(_evaluation(request, candidate),), rejected=(), remedies=())


def _evaluation(request: Request, candidate: Candidate) -> Evaluation:
    gpu_bytes = 26 * 10**9
    memory = MemoryEstimate(
        terms=(
            Term(
                name="states/weights",
                device=Device.GPU,
                moments=tuple(Moment),
                size_bytes=gpu_bytes,
                formula="2 * params",
                source="test",
            ),
        ),
        gpu_overhead_bytes=2**30,
        moment_bytes={device: (gpu_bytes if device is Device.GPU else 0,) * len(Moment) for device in Device},
        peaks={device: gpu_bytes if device is Device.GPU else 0 for device in Device},
    )
    time = TimeEstimate(
        terms=(TimeTerm(name="compute", seconds=2.0, hidden_seconds=0.0, formula="flop / rate", source="test"),),
        step_seconds=2.0,
        tokens_per_step=candidate.global_batch * request.workload.seq_len,
        model_flop_per_step=1e15,
        world_size=candidate.degrees.world_size,
        peak_flop_per_s=312e12,
        relative_error=0.2,
        error_class="test",
    )
    return Evaluation(
        candidate=candidate,
        verdict=Verdict.FITS,
        limit=Limit(resource="gpu", phase="step", excess_bytes=-50 * 10**9),
        memory=memory,
        time=time,
        reasons=("fastest of 12 plans that fit",),
    )


def make_document(plan: Plan) -> dict[str, Any]:
    """The plan document of CONTRACT section 3, filled by hand."""
    evaluation, request = plan.ranked[0], plan.request
    c, time, model, cluster, work = (
        evaluation.candidate,
        evaluation.time,
        request.model,
        request.cluster,
        request.workload,
    )
    phases = {phase.value: 0 for phase in Phase}
    return {
        "dsplan_version": "0.1.0",
        "versions": dict.fromkeys(("dsplan", "deepspeed", "accelerate", "transformers", "torch"), "0.1.0"),
        "request": {
            "model": model.name,
            "gpus": "4xA100-80G",
            "seq_len": work.seq_len,
            "global_batch": None,
            "method": "full",
            "lora_rank": None,
            "lora_targets": None,
            "precision": work.precision.value,
            "optimizer": work.optimizer.value,
            "attention": work.attention.value,
            "loss": work.loss.value,
            "stack": work.stack.value,
            "host_ram": None,
            "zero": [0, 1, 2, 3],
            "tp": [1, 2, 4],
            "checkpointing": ["none", "full"],
            "offload": ["none"],
            "micro_batch": None,
            "accumulation": None,
            "objective": "throughput",
            "margin": 0.05,
            "integration": request.integration.value,
            "tokens": None,
            "launcher": request.launcher.value,
            "top": 5,
            "script": request.script,
            "script_arguments": list(request.script_arguments),
        },
        "model": {
            "name": model.name,
            "model_type": model.model_type,
            "hub_id": model.hub_id,
            "source": model.source,
            "parameters": 13_015_864_320,
            "active_parameters": 13_015_864_320,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "ffn_hidden": model.ffn_hidden,
            "vocab": model.vocab,
            "max_positions": model.max_positions,
            "tied_embeddings": model.tied_embeddings,
            "experts": 0,
            "experts_per_token": 0,
            "config": dict(model.hf_config),
        },
        "cluster": {
            "gpu": cluster.gpu.name,
            "gpu_full_name": cluster.gpu.full_name,
            "source": cluster.source,
            "gpu_memory_bytes": cluster.gpu.memory_bytes,
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.gpus_per_node,
            "world_size": cluster.world_size,
            "host_ram_bytes": cluster.host_memory_bytes,
            "cpu_cores": cluster.cpu_cores,
            "nvme_bytes": None,
            "intra_node": cluster.intra_node.name,
            "network": cluster.network_name,
            "instance": None,
            "network_bytes_per_second": cluster.network_bytes_per_s,
            "usd_per_hour": None,
        },
        "assumptions": list(request.assumptions),
        "plans": [
            {
                "rank": 1,
                "pareto": True,
                "verdict": evaluation.verdict.value,
                "reasons": list(evaluation.reasons),
                "limiting": {"resource": "gpu", "phase": "step", "excess_bytes": -50 * 10**9},
                "zero_stage": int(c.zero),
                "tp": c.degrees.tp,
                "dp": c.degrees.dp,
                "offload": c.offload.value,
                "checkpointing": c.checkpointing.value,
                "micro_batch": c.micro_batch,
                "accumulation": c.accumulation,
                "global_batch": c.global_batch,
                "precision": work.precision.value,
                "memory": {
                    "gpu": {
                        "capacity_bytes": cluster.gpu.memory_bytes,
                        "peak_bytes": evaluation.memory.gpu_total_bytes,
                        "tensor_peak_bytes": 26 * 10**9,
                        "overhead_bytes": 2**30,
                        "limiting_phase": "step",
                        "phases": phases,
                    },
                    "host": {"capacity_bytes": None, "peak_bytes": 0, "pinned_bytes": 0, "phases": phases},
                    "terms": [],
                },
                "time": time
                and {
                    "step_seconds": time.step_seconds,
                    "tokens_per_second": time.tokens_per_second,
                    "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu,
                    "mfu": time.mfu,
                    "mfu_convention": "test",
                    "tokens_per_second_low": 1.0,
                    "tokens_per_second_high": 2.0,
                    "model_tflops_per_gpu": 1.0,
                    "error_class": "test",
                    "terms": [],
                },
                "cost": None,
                "energy": None,
            }
        ],
        "rejected": {"count": 0, "by_rule": {}, "nearest": []},
        "remedies": [],
    }


def random_plans(count: int, *, seed: int) -> list[Plan]:
    """Legal plans across stages, degrees, offload, precisions, launchers and clusters; the same for the same seed."""
    from random import Random

    draw, plans = Random(seed), []
    while len(plans) < count:
        zero, offload = draw.randrange(4), draw.choice(list(Offload))
        precision, optimizer = draw.choice(list(Precision)), draw.choice(list(Optimizer))
        if (offload.param_device != "none" and zero != 3) or (offload is not Offload.NONE and zero == 0):
            continue
        if offload is not Offload.NONE and optimizer is not Optimizer.ADAMW:
            continue
        if precision is Precision.PURE_BF16 and zero == 0:
            continue
        cluster = make_cluster(
            nodes=draw.choice((1, 1, 2, 4)),
            gpus_per_node=draw.choice((1, 2, 4, 8)),
            cpu_cores=draw.choice((None, 1, 64)),
        )
        tp = draw.choice([degree for degree in (1, 2, 4, 8) if degree <= cluster.gpus_per_node])
        settings = replace(
            SETTINGS,
            overlap_comm=draw.choice((True, False)),
            reduce_bucket_elements=draw.randrange(1, 10**9),
            max_live_parameters=draw.randrange(10**9),
            pin_memory=draw.choice((True, False)),
            fp32_gradient_accumulation=zero > 0 and draw.choice((True, False)),
        )
        plans.append(
            make_plan(
                zero=zero,
                tp=tp,
                offload=offload,
                cluster=cluster,
                settings=settings,
                precision=precision,
                optimizer=optimizer,
                launcher=draw.choice(list(Launcher)),
                integration=draw.choice(list(Integration)),
                checkpointing=draw.choice(list(Checkpointing)),
                micro_batch=draw.choice((1, 2, 3, 16)),
                accumulation=draw.choice((1, 4, 7)),
                model=draw.choice((MODEL, replace(MODEL, vocab=256_000, name="wide vocabulary"))),
                script=draw.choice((None, None, "my train.py")),
                script_arguments=draw.choice(((), ("--lr", "a b"))),
            )
        )
    return plans
