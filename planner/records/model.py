"""The model: its geometry, its traits, and the tensors it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.records.traced import TracedModel


class Norm(str, Enum):
    """The normalisation layer, which decides what its backward keeps."""

    RMS = "rmsnorm"
    """Root-mean-square norm computed in fp32, weight only."""
    RMS_UNIT_OFFSET = "rmsnorm_unit_offset"
    """Gemma's form: fp32 until after the multiplication by (1 + weight)."""
    LAYER = "layernorm"
    """torch LayerNorm with weight and bias."""


class Position(str, Enum):
    """How positions enter."""

    ROTARY = "rotary"
    LEARNED = "learned"
    """A table of max_positions x hidden beside the token embedding."""
    ALIBI = "alibi"


class AutoTP(str, Enum):
    """What DeepSpeed's AutoTP does with this architecture (DeepSpeed 0.19.8, transformers 5.24)."""

    TRAINED = "trained"
    """Trained on the real engine with a loss equal to an unsharded copy."""
    CONVERTS = "converts"
    """The model's tensor-parallel plan converts; not trained."""
    REFUSED = "refused"
    """DeepSpeed raises, or loads and shards nothing useful."""


class Split(str, Enum):
    """What tensor parallelism does with a tensor."""

    COLUMN = "column"
    """Divided along its output dimension."""
    ROW = "row"
    """Divided along its input dimension."""
    REPLICATED = "replicated"
    """Whole on every tensor-parallel rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTensor:
    """One named parameter tensor and how often it occurs in the model."""

    name: (
        str  # path-like with the layer number left out: `layer/attention/q`, `embedding`, `head`, `layer/mlp/expert/up`
    )
    rows: int  # output features; the whole length of a vector
    columns: int  # input features; 1 for a vector
    count: int  # occurrences in the whole model
    split: Split
    pieces: int = 0  # key-value heads, which tensor parallelism never cuts; 0: cut at any element

    @property
    def numel(self) -> int:
        """Elements of one occurrence, unsharded."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Geometry and traits of a decoder model, enough to count parameters, FLOPs and kept tensors.

    Mixture-of-experts models: `experts` > 0, `expert_ffn_hidden` the width of one expert, `ffn_hidden` the width
    of a dense layer (0 when there is none), `dense_layers` how many layers have a dense MLP instead of experts,
    `shared_ffn_hidden` the width of the always-active expert (0: none).
    """

    name: str
    model_type: str  # transformers' model_type
    hub_id: str | None  # where the weights live, for the training script
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    max_positions: int
    tied_embeddings: bool
    gated_mlp: bool  # three MLP matrices (SwiGLU, GeGLU) instead of two
    activation: str  # `silu`, `gelu`, `gelu_new`, `relu`, ...
    norm: Norm
    norms_per_layer: int  # hidden-wide norms in one layer: 2 for Llama, 4 for Gemma 2, 1 for a parallel block
    parallel_block: bool  # attention and MLP read the same normed input (Falcon, Phi, GPT-J)
    qk_norm: bool
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    head_bias: bool
    final_norm: bool
    position: Position
    autotp: AutoTP
    source: str
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0
    dense_layers: int = 0
    traits: tuple[tuple[str, Any], ...] = ()  # what one architecture has and no other: read by name through `trait`
    hf_config: Mapping[str, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # the Hugging Face fields it was read from
    notes: tuple[str, ...] = ()  # what the reader had to decide, for the list of assumptions
    traced: TracedModel | None = None  # tensors and activations of a model_type that has no formulas

    def trait(self, name: str, default: Any = None) -> Any:
        """The value of a trait that only some architectures have."""
        return dict(self.traits).get(name, default)


class Precision(str, Enum):
    """Arithmetic and storage of the run."""

    BF16 = "bf16"
    """bf16 weights and gradients, fp32 master weights and optimizer states."""
    FP16 = "fp16"
    """The same in fp16, with dynamic loss scaling."""
    FP32 = "fp32"
    """Everything in fp32."""
    PURE_BF16 = "pure-bf16"
    """bf16 weights, gradients, master weights and optimizer states: no fp32 copy of anything."""

    @property
    def bytes(self) -> int:
        """Bytes of one weight."""
        return 4 if self is Precision.FP32 else 2

    @property
    def state_bytes(self) -> int:
        """Bytes of one value of the master weights and of the optimizer's states."""
        return 2 if self is Precision.PURE_BF16 else 4


class Method(str, Enum):
    """What is trained."""

    FULL = "full"
    """Every parameter."""
    LORA = "lora"
    """Low-rank adapters beside frozen weights in the precision of the run."""
    QLORA = "qlora"
    """Low-rank adapters beside frozen weights in 4 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank adapters: two matrices of `rank` beside every target."""

    method: Method  # LORA or QLORA
    rank: int
    targets: tuple[str, ...]  # module names as peft takes them: `q_proj`, or `all-linear` alone
