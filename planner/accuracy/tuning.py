"""What a run trains and how its frozen weights are stored, from the words of its method.

In: a method as its source wrote it (`lora r8 (q,v)`, `qlora nf4`), framework. Out: `Tuning`. Question: which inputs
does backward need, and how many bytes does a frozen weight take?
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.accuracy.words import Layers

ALL_SITES = frozenset({"q", "k", "v", "o", "up", "down"})
"""Where a layer's linear modules stand: `up` is gate and up together."""

SITE_WORDS = (
    (r"all|\ball-linear\b", ALL_SITES),
    (r"c_attn|qkv", frozenset({"q", "k", "v"})),
    (r"\bq\b|q_proj", frozenset({"q"})),
    (r"\bk\b|k_proj", frozenset({"k"})),
    (r"\bv\b|v_proj", frozenset({"v"})),
    (r"\bo\b|o_proj|c_proj", frozenset({"o"})),
    (r"mlp|w1|w2|gate|up_proj", frozenset({"up", "down"})),
)
DEFAULT_SITES = {
    Layers.LITGPT: frozenset({"q", "v"}),  # config_hub/finetune: lora_query, lora_value
    Layers.TORCHTUNE: ALL_SITES - {"k"},  # recipes/configs: q, v, output, apply_lora_to_mlp
}
PEFT_DEFAULT_SITES = frozenset({"q", "v"})  # peft utils/constants.py, the Llama rows
DEFAULT_RANK = 8
QLORA_RANK = 64
"""QLoRA's own recipe, with adapters on every linear layer. Source: arXiv:2305.14314, appendix B."""

NF4_BYTES = 0.5 + 4 / 64
"""4 bits and one fp32 scale for 64 weights. Source: Dettmers et al. 2023, arXiv:2305.14314, section 3."""
NF4_DOUBLE_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""The same with 8-bit scales, themselves scaled once in 256. Source: the same."""
GPTQ_BYTES = {4: 0.5 + 2 / 128 + 0.5 / 128, 8: 1.0 + 2 / 128 + 1 / 128}
"""Packed weights with a 16-bit scale and a packed zero for 128. Source: Frantar et al. 2022, arXiv:2210.17323."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is trained. `full` alone: every parameter."""

    full: bool
    rank: int = DEFAULT_RANK
    sites: frozenset[str] = frozenset()
    dropout: bool = False
    embeddings: bool = False  # embedding and head are trained beside the adapters
    norms: bool = False  # LitGPT's adapter v2: norms are trained, and a scale and shift of every linear output
    prefix: bool = False  # learned prefixes and no adapters inside the layers
    fp32_adapters: bool = False
    frozen_bytes: float = 2.0  # of a weight of a linear module in a layer
    frozen_head_bytes: float = 2.0
    frozen_rest_bytes: float = 2.0  # embeddings and norms
    keeps_inputs: bool = False  # a 4-bit product keeps its input though its weight is frozen

    @property
    def quantized(self) -> bool:
        """Whether the frozen weights have fewer than 16 bits."""
        return self.frozen_bytes < 2


def tuning_of(method: str | None, layers: Layers) -> Tuning:
    """The tuning that a method's text means."""
    text = (method or "full").casefold()
    if text.startswith("full"):
        return Tuning(full=True)
    prefix = text.startswith(("prefix", "prompt", "adapter", "qadapter")) and "v2" not in text
    second = "adapter_v2" in text
    bytes_per_weight = _frozen_bytes(text)
    quantized, trainer = bytes_per_weight < 2, layers is Layers.TRANSFORMERS
    bitsandbytes = quantized and "gptq" not in text
    default = ALL_SITES if quantized and trainer else DEFAULT_SITES.get(layers, PEFT_DEFAULT_SITES)
    sites = frozenset() if prefix or second else _sites(text, default)
    return Tuning(
        full=False,
        rank=rank_of(text) or (QLORA_RANK if quantized and trainer else DEFAULT_RANK),
        sites=sites,
        dropout=bool(sites) and (layers is Layers.LITGPT or trainer),
        embeddings="embedding" in text,
        norms=second,
        prefix=prefix,
        fp32_adapters=trainer,  # peft 0.21 tuners/tuners_utils.py cast_adapter_dtype; before 0.6 they were made in fp32
        frozen_bytes=bytes_per_weight,
        frozen_head_bytes=bytes_per_weight if layers is Layers.LITGPT else 4.0 if bitsandbytes and trainer else 2.0,
        frozen_rest_bytes=4.0 if bitsandbytes and trainer else 2.0,
        keeps_inputs=bitsandbytes and layers is Layers.LITGPT,
    )


def _sites(text: str, default: frozenset[str]) -> frozenset[str]:
    named: set[str] = set()
    detail = text.replace("qlora", "").replace("lora", "")
    for pattern, sites in SITE_WORDS:
        if re.search(pattern, detail):
            named |= sites
    return frozenset(named) or default


def _frozen_bytes(text: str) -> float:
    if "gptq" in text:
        return GPTQ_BYTES[8 if "int8" in text else 4]
    if "int8" in text or "8-bit" in text:
        return 1.0
    if text.startswith(("qlora", "qadapter")) or "nf4" in text or "int4" in text or "4-bit" in text:
        return NF4_BYTES if "nf4" in text and "bnb" in text and "dq" not in text else NF4_DOUBLE_BYTES
    return 2.0


def rank_of(method: str) -> int | None:
    """The rank that a method's text names: `lora r8`, `lora rank32`."""
    found = re.search(r"\br(?:ank)?[ =-]?(\d+)", method)
    return int(found.group(1)) if found else None
