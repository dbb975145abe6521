# pyright: basic
"""Shapes of decoder-only models: the sizes and features of their layers, by which families differ,
and the names of their tensors in a checkpoint. Sizes are in elements.

    decoder   embedding, layers, final norm, head
    layer     mixer (attention or a recurrence), MLP (dense or a mixture of experts), norms
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class AttentionShape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores."""
    window: int | None = None
    """Attention window in tokens, including the current one; None: unlimited."""
    rope: str | None = ""
    """Set of rotary parameters, by layer type; "": the only set of the config; None: queries and
    keys are not rotated."""
    rotates_part: bool = False
    """Whether `partial_rotary_factor` of the rotary parameters is the part of each head that is
    rotated; if not, the parameter has no effect."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    norms_all_heads: bool = False
    """Whether the queries of all heads are normalized as one vector, and so the keys (OLMo 2)."""
    softcap: float | None = None
    has_sinks: bool = False
    v_norm: bool = False
    """Whether values are normalized, too, without a weight."""
    key_is_value: bool = False
    """Whether the projection of keys, before their norm, is also that of values."""
    kv_layer: int | None = None
    """Number of the earlier layer whose keys and values are used; None: the layer has its own."""
    has_gate: bool = False
    """Whether the output is multiplied by the sigmoid of a gate, which `q_proj` yields beside each
    query head."""


@dataclass(frozen=True)
class ShortConvolutionShape:
    """A gated convolution over the last `kernel` tokens, by channel (LFM2)."""

    kernel: int
    bias: bool


@dataclass(frozen=True)
class GatedDeltaNetShape:
    """Linear attention with the gated delta rule (Qwen3-Next, Qwen3.5)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    act: str
    projections: Literal["separate", "interleaved", "each"]
    """How the checkpoint stores the input projections: `in_proj_qkv`, `_z`, `_b`, `_a`; or
    `in_proj_qkvz` and `in_proj_ba`, by key head; or `q_proj`, `k_proj` and so on, with three
    convolutions (OLMo Hybrid)."""
    rate_scale: float = 1.0
    """Factor of the sigmoid of b: 2 for a state that may also change its sign."""
    norm_eps: float | None = None
    """Epsilon of the norm of the output; None: that of the decoder's norms."""


@dataclass(frozen=True)
class Mamba2Shape:
    """A selective state space model (Mamba-2)."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    act: str
    conv_bias: bool
    proj_bias: bool
    out_bias: bool
    time_step_limit: tuple[float, float]
    norm: Literal["after gate", "before gate", "none"] = "after gate"
    """Whether the output is normalized, and whether it is multiplied by the gate before."""
    row_scales: tuple[float, float, float, float, float] | None = None
    """Factors of the projected gates, x, b, c and time steps."""


@dataclass(frozen=True)
class ParallelShape:
    """Attention and a state space model on the same input, whose outputs are added (Falcon-H1).
    Each has a factor for its input and one for its output."""

    attention: AttentionShape
    mamba: Mamba2Shape
    attention_scales: tuple[float, float]
    mamba_scales: tuple[float, float]


MixerShape = (
    AttentionShape | ShortConvolutionShape | GatedDeltaNetShape | Mamba2Shape | ParallelShape
)


@dataclass(frozen=True)
class MlpShape:
    intermediate: int
    act: str
    bias: bool = False
    is_gated: bool = True
    """Whether the activation is that of a gate, by which `up` is multiplied; else it is that of
    `up`."""
    gate_scale: float = 1.0
    """Factor of the gate before its activation."""
    output_scale: float = 1.0


@dataclass(frozen=True)
class MixtureShape:
    """A mixture of experts: each token is computed by `chosen` of the experts."""

    experts: int
    chosen: int
    intermediate: int
    act: str
    router: Literal["softmax", "softmax of chosen", "sigmoid"]
    """Weights of the experts: softmax over all of them, or over the chosen ones; or the sigmoid of
    each."""
    normalizes: bool = True
    """Whether the weights of the chosen experts are scaled to the sum 1."""
    weight_scale: float = 1.0
    has_choice_bias: bool = False
    """Whether a bias is added to the weights for the choice of experts alone."""
    router_bias: bool = False
    expert_bias: bool = False
    clamp: tuple[float, float] | None = None
    """(alpha, limit) of gpt-oss's clamped activation, in place of `act`."""
    is_gated: bool = True
    """The `is_gated` of each expert's MLP."""
    has_fp32_router: bool = False
    """Whether the router is computed in fp32, whatever the dtype of the model."""
    shared: MlpShape | None = None
    """A dense MLP whose output is added for every token."""
    shared_has_gate: bool = False
    """Whether the output of `shared` is multiplied by the sigmoid of a gate."""


@dataclass(frozen=True)
class LayerShape:
    """A layer that lacks `mixer` or `mlp` (None) lacks its norm, too (Nemotron-H)."""

    mixer: MixerShape | None
    mlp: MlpShape | MixtureShape | None
    mixture_beside: MixtureShape | None = None
    """A mixture whose output is added to that of `mlp` (Gemma 4)."""
    has_input_norms: bool = True
    """Whether the inputs of mixer and MLP are normalized; if not, their outputs are (OLMo 2)."""

    @property
    def attention(self) -> AttentionShape | None:
        """The attention of the layer, also where another mixer is beside it."""
        mixer = self.mixer.attention if isinstance(self.mixer, ParallelShape) else self.mixer
        return mixer if isinstance(mixer, AttentionShape) else None


@dataclass(frozen=True)
class LayerInputsShape:
    """Inputs of each layer beside the output of the layer before (Gemma 4)."""

    vocab_size: int
    size: int
    act: str


@dataclass(frozen=True)
class TensorNames:
    """Names of tensors in a checkpoint; the defaults are those of Llama. A tuple names matrices
    that are stacked to one."""

    embedding: str = "embed_tokens"
    input_norm: str = "input_layernorm"
    mixer_output_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    mlp_output_norm: str = "post_feedforward_layernorm"
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    out: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    recurrence: str = "linear_attn"
    mlp: str = "mlp"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    mixture: str = "mlp"
    router: str = "gate"
    choice_bias: str = "expert_bias"
    experts: Literal["each", "stacked", "stacked, transposed"] = "each"
    """Tensors of the experts: one for each (`experts.0.` …), or one for all, [expert, out, in] or
    [expert, in, out]. A checkpoint of kind "each" may also have stacked ones."""
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    stacked_gate_up: str = "experts.gate_up_proj"
    stacked_down: str = "experts.down_proj"
    shared: str = "mlp.shared_expert"
    shared_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    shared_down: str = "down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    final_norm: str = "norm"


@dataclass(frozen=True)
class DecoderShape:
    vocab_size: int
    hidden: int
    eps: float
    layers: tuple[LayerShape, ...]
    has_tied_embeddings: bool = False
    has_output_norms: bool = False
    """Whether the outputs of mixer and MLP are normalized before they are added (Gemma)."""
    has_centered_norms: bool = False
    """Whether the checkpoint stores the weights of norms less 1 (Gemma, Qwen3.5)."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of the outputs of mixer and MLP."""
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    layer_inputs: LayerInputsShape | None = None
    has_layer_scalars: bool = False
    """Whether the output of each layer is multiplied by a number."""
    names: TensorNames = field(default_factory=TensorNames)
