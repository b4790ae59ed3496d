"""The rules of `dsplan check`: what each number stands for, how bad it is, and when it bites.

In: nothing. Out: the table `RULES` and `finding`, which fills a Problem from it.
DS0xx concern a DeepSpeed file, DS1xx an Accelerate file, DS2xx a plan folder, DS3xx training arguments and the launch,
DS4xx the machine and the model, DS5xx the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.records.problem import Edit, EditKind, Problem, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: a line of documentation, its usual severity, and when it bites."""

    title: str
    severity: Severity = ERROR
    bites: str = "config"  # config, launch, engine init, first step, save, silently


RULES = {
    "DS001": Rule(title="the file is not JSON or YAML"),
    "DS002": Rule(title="only DeepSpeed itself reads comments and trailing commas in JSON", severity=WARNING),
    "DS003": Rule(title="a key is written twice"),
    "DS004": Rule(title="a word that the reader takes for something else than it seems", bites="silently"),
    "DS005": Rule(title="a file with nothing to check", severity=INFO, bites="silently"),
    "DS006": Rule(title="a DeepSpeed configuration in YAML", severity=WARNING),
    "DS010": Rule(title="no such key in a section that refuses unknown keys"),
    "DS011": Rule(title="a key that nothing reads: misspelt or in the wrong place", bites="silently"),
    "DS012": Rule(title="a block that DeepSpeed 0.19.8 has removed"),
    "DS013": Rule(title="a value of the wrong type or out of range"),
    "DS014": Rule(title='"auto" that nothing replaces', bites="silently"),
    "DS015": Rule(title="a deprecated key", severity=WARNING),
    "DS020": Rule(title="neither the micro-batch nor the total batch is given"),
    "DS021": Rule(title="total batch = micro-batch x accumulation x ranks does not hold"),
    "DS022": Rule(title="a fixed total batch breaks with another number of GPUs", severity=WARNING),
    "DS030": Rule(title="fp16 and bf16 are both on"),
    "DS031": Rule(title="a fixed loss scale switches dynamic scaling off", severity=WARNING, bites="first step"),
    "DS032": Rule(title="fp32 gradient accumulation without ZeRO", bites="engine init"),
    "DS033": Rule(title="16-bit master weights or states that DeepSpeed does not keep"),
    "DS034": Rule(title="data_types that contradict the precision", bites="engine init"),
    "DS040": Rule(title="parameter offload needs ZeRO-3", bites="silently"),
    "DS041": Rule(title="optimizer offload needs ZeRO", bites="first step"),
    "DS042": Rule(title="NVMe offload without a path", bites="engine init"),
    "DS043": Rule(title="a setting that only ZeRO-3 obeys", bites="silently"),
    "DS044": Rule(title="ZeRO-3 sizes without ZeRO-3", severity=WARNING, bites="silently"),
    "DS045": Rule(title="without the gather flag a save writes no whole model", severity=WARNING, bites="save"),
    "DS046": Rule(title="a setting without effect at stage 3", severity=WARNING, bites="silently"),
    "DS047": Rule(title="NVMe below stage 3 is host memory", bites="silently"),
    "DS050": Rule(title="tensor-parallel sizes that disagree", bites="engine init"),
    "DS051": Rule(title="the tensor-parallel size does not divide the ranks", bites="engine init"),
    "DS052": Rule(title="an AutoTP partition that is not understood", bites="engine init"),
    "DS060": Rule(title="gradient_clipping is not given: DeepSpeed clips at 1.0", severity=WARNING, bites="silently"),
    "DS061": Rule(title="clipping without the gradient norm", bites="engine init"),
    "DS062": Rule(title="a parameter that the optimizer does not take", bites="engine init"),
    "DS063": Rule(title="a scheduler that cannot start", bites="engine init"),
    "DS064": Rule(title="a gradient reduction that ZeRO does not allow", bites="engine init"),
    "DS066": Rule(title="an optimizer that DeepSpeed or ZeRO refuses", bites="engine init"),
    "DS067": Rule(title="Muon under conditions that it does not bear", bites="engine init"),
    "DS068": Rule(title="accelerate divides the scheduler's total", severity=WARNING, bites="silently"),
    "DS069": Rule(title="accelerate wants a zero_optimization section"),
    "DS070": Rule(title="activation checkpointing in a place without effect", severity=WARNING, bites="silently"),
    "DS071": Rule(title="the optimizer is left to the script", severity=WARNING, bites="engine init"),
    "DS072": Rule(title="the scheduler sets another learning rate", severity=WARNING, bites="silently"),
    "DS073": Rule(title="Adam means AdamW", severity=WARNING, bites="silently"),
    "DS074": Rule(title="contiguous checkpoints without what they need", severity=WARNING, bites="first step"),
    "DS075": Rule(title="compile passes that do not compose", bites="first step"),
    "DS076": Rule(title="ranks for a sequence that nothing divides", severity=WARNING, bites="silently"),
    "DS077": Rule(title="expert parallelism that AutoEP refuses", bites="engine init"),
    "DS078": Rule(title="ZenFlow that cannot run", bites="engine init"),
    "DS079": Rule(title="rare settings that the engine refuses", bites="engine init"),
    "DS110": Rule(title="a key that accelerate does not know"),
    "DS111": Rule(title="a key that accelerate copies and nothing reads", bites="silently"),
    "DS112": Rule(title="a value that accelerate or DeepSpeed refuses"),
    "DS120": Rule(title="a setting with two homes"),
    "DS121": Rule(title="the DeepSpeed file that the YAML names is not there"),
    "DS122": Rule(title="several nodes through ssh without a host file train on one node", bites="silently"),
    "DS123": Rule(title="process and machine counts that do not go together"),
    "DS124": Rule(title="an NVMe path in the YAML reaches nobody", bites="engine init"),
    "DS125": Rule(title="offload in the YAML does not go with its ZeRO stage", bites="silently"),
    "DS126": Rule(title="parallelism_config asks for what DeepSpeed does not do", bites="silently"),
    "DS127": Rule(title="a section that nothing reads with this distributed_type", bites="silently"),
    "DS128": Rule(title="sizes of parallelism_config that do not go together"),
    "DS129": Rule(title="sequence parallelism that cannot run"),
    "DS130": Rule(title="the machines cannot find one another", bites="engine init"),
    "DS131": Rule(title="a key of FSDP without effect", severity=WARNING, bites="silently"),
    "DS132": Rule(title="a key without effect at this ZeRO stage or launcher", severity=WARNING, bites="silently"),
    "DS133": Rule(title="accumulation that the file leaves to accelerate", severity=INFO, bites="silently"),
    "DS201": Rule(title="plan.json does not have the form of a plan document"),
    "DS202": Rule(title="what trains is not what plan.json says", bites="silently"),
    "DS203": Rule(title="accelerate.yaml is not what plan.json says", bites="silently"),
    "DS204": Rule(title="a file of the plan folder is missing"),
    "DS301": Rule(title="a value differs from the training arguments"),
    "DS302": Rule(title="a value that somebody wrote and DeepSpeed does not get", bites="silently"),
    "DS303": Rule(title="a value of the YAML differs from the training arguments"),
    "DS304": Rule(title="DeepSpeed and FSDP at once"),
    "DS305": Rule(title="training arguments that do not go with DeepSpeed", bites="config"),
    "DS306": Rule(title="training arguments that contradict each other"),
    "DS307": Rule(title="an argument that the DeepSpeed file overrules", bites="silently"),
    "DS308": Rule(title="training arguments that transformers refuses"),
    "DS309": Rule(title="a word that is no choice of its argument"),
    "DS310": Rule(title="a flag of the launch line that is overruled or refused", bites="silently"),
    "DS311": Rule(title="a launcher that does not tell the ranks"),
    "DS312": Rule(title="the launch line names no configuration file", severity=WARNING, bites="silently"),
    "DS313": Rule(title="Slurm starts other processes than meant", bites="launch"),
    "DS314": Rule(title="the files of the machines do not go together", bites="engine init"),
    "DS315": Rule(title="the Trainer logs a wrong total batch", severity=WARNING, bites="silently"),
    "DS316": Rule(title="flags of a launcher that exclude one another"),
    "DS317": Rule(title="a launcher's flag after the script", severity=WARNING, bites="silently"),
    "DS318": Rule(title="the CPU optimizer on one core", severity=WARNING, bites="silently"),
    "DS319": Rule(title="an environment variable left over from debugging", severity=WARNING, bites="silently"),
    "DS320": Rule(title="an argument that transformers 5 has renamed or removed", severity=WARNING),
    "DS321": Rule(title="a misspelt training argument"),
    "DS322": Rule(title="a training argument of the wrong type", bites="engine init"),
    "DS323": Rule(title="a DeepSpeed file that no argument names", severity=WARNING, bites="silently"),
    "DS324": Rule(title="a line of the script that lost its command", bites="launch"),
    "DS325": Rule(title="a flag that the launcher does not know", bites="launch"),
    "DS326": Rule(title="a program where the script should stand", bites="launch"),
    "DS401": Rule(title="arithmetic that the GPU does not have", bites="engine init"),
    "DS403": Rule(title="a tensor-parallel group spans nodes", severity=WARNING, bites="silently"),
    "DS404": Rule(title="hpz groups that do not go with the ranks", bites="engine init"),
    "DS405": Rule(title="buckets that are large for the card", severity=WARNING, bites="first step"),
    "DS406": Rule(title="the sequence-parallel size does not divide the ranks", bites="engine init"),
    "DS407": Rule(title="staging buffers that lock much host memory", severity=WARNING, bites="engine init"),
    "DS410": Rule(title="heads that do not divide by the tensor-parallel size", severity=WARNING, bites="silently"),
    "DS411": Rule(title="a model that AutoTP does not train", bites="engine init"),
    "DS412": Rule(title="fp16 for a model trained in bf16", severity=WARNING, bites="first step"),
    "DS413": Rule(title='"auto" sizes for a model without hidden_size', bites="engine init"),
    "DS414": Rule(title="experts under ZeRO-3 that are no leaf", severity=WARNING, bites="first step"),
    "DS415": Rule(title="more host memory than a node has", severity=WARNING, bites="engine init"),
    "DS416": Rule(title="more GPU memory than the card has", severity=WARNING, bites="first step"),
    "DS417": Rule(title="a model that the sequence-parallel size does not divide", bites="engine init"),
    "DS418": Rule(title="swap buffers that are smaller than a parameter", bites="engine init"),
    "DS419": Rule(title="a class that the model does not have", bites="engine init"),
    "DS501": Rule(title="a key or value that this release does not know"),
    "DS502": Rule(title="a release that dsplan does not know", severity=INFO, bites="silently"),
}


def finding(
    rule: str,
    path: str,
    message: str,
    *,
    fix: str,
    severity: Severity | None = None,
    bites: str | None = None,
    file: str = "",
    edits: tuple[Edit, ...] = (),
) -> Problem:
    """A Problem with what the table knows about its rule."""
    known = RULES[rule]
    return Problem(
        rule=rule,
        severity=severity or known.severity,
        file=file,
        path=path,
        message=message,
        bites=bites or known.bites,
        fix=fix,
        edits=edits,
    )


def take_out(*paths: str) -> tuple[Edit, ...]:
    """Edits that remove keys."""
    return tuple(Edit(kind=EditKind.REMOVE, path=path) for path in paths)


def write(path: str, value: Any) -> tuple[Edit, ...]:
    """The edit that writes a value."""
    return (Edit(kind=EditKind.SET, path=path, value=value),)


def rename(path: str, to: str) -> tuple[Edit, ...]:
    """The edit that gives a key its right name."""
    return (Edit(kind=EditKind.RENAME, path=path, to=to),)


def move(path: str, to: str) -> tuple[Edit, ...]:
    """The edit that puts a key where it is read."""
    return (Edit(kind=EditKind.MOVE, path=path, to=to),)
