# pyright: basic
"""Schemas of config.json for the common architectures, so that such a model is loaded without
transformers, whose import takes longer than all other steps of loading a small model.

Defaults and derived values are those of transformers' config classes; a test compares them field by
field. Whatever a schema does not accept (an absent size, a value of another type, a field that
changes the meaning of others) is left to transformers, which reads it or says what is wrong.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UnsetType

ROPE_NUMBERS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
"""Rope types that a schema accepts, and the numbers that each requires."""
ROPE_OPTIONS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Numbers that rope parameters may have; null is the same as absent."""
LayerTypes = list[Literal["full_attention", "sliding_attention"]] | None


class ModelConfig(msgspec.Struct, kw_only=True):
    """A config, with the interface of transformers' `PretrainedConfig` as far as it is used."""

    default_theta: ClassVar[float] = 10_000.0

    architectures: list[str]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool = False
    layer_types: LayerTypes = None
    quantization_config: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: int | float | UnsetType = msgspec.UNSET
    # Fields that change the meaning of others.
    text_config: UnsetType = msgspec.UNSET
    decoder: UnsetType = msgspec.UNSET
    generator: UnsetType = msgspec.UNSET
    text_encoder: UnsetType = msgspec.UNSET
    per_layer_config: UnsetType = msgspec.UNSET
    partial_rotary_factor: UnsetType = msgspec.UNSET
    original_max_position_embeddings: UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Derive what the file does not state. Raises ValueError for what is beyond the schema."""
        sizes = (self.vocab_size, self.hidden_size, self.intermediate_size, self.num_hidden_layers)
        if min(*sizes, self.num_attention_heads, self.max_position_embeddings) < 1:
            raise ValueError("a size is not positive")
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.rope_parameters = self._read_rope(self.rope_scaling or self.rope_parameters or {})
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError("layer_types does not have one entry for each layer")

    def _read_rope(self, stated: dict[str, Any]) -> dict[str, Any]:
        theta = self.default_theta if self.rope_theta is msgspec.UNSET else self.rope_theta
        rope = {"rope_theta": theta, "rope_type": stated.get("type", "default"), **stated}
        kind = rope["rope_type"]
        if kind in ("llama3", "yarn"):
            rope.setdefault("original_max_position_embeddings", self.max_position_embeddings)
        if kind not in ROPE_NUMBERS or "partial_rotary_factor" in rope:
            raise ValueError("rope parameters beyond the schema")
        if any(isinstance(value, dict) for value in rope.values()):
            raise ValueError("rope parameters by layer type")
        numbers = [rope.get(name) for name in ("rope_theta", *ROPE_NUMBERS[kind])]
        numbers += [rope[name] for name in ROPE_OPTIONS if rope.get(name) is not None]
        if not {type(number) for number in numbers} <= {int, float}:
            raise ValueError("a rope parameter is not a number")
        return rope

    def get_text_config(self) -> ModelConfig:
        return self

    def standardize_rope_params(self) -> None:
        """Do nothing: `rope_parameters` are in the standard form from the start."""


class LlamaConfig(ModelConfig, kw_only=True):
    model_type: Literal["llama"]
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size is no multiple of num_attention_heads")


class MistralConfig(ModelConfig, kw_only=True):
    model_type: Literal["mistral"]
    num_key_value_heads: int
    sliding_window: int | None = 4096


class MinistralConfig(ModelConfig, kw_only=True):
    model_type: Literal["ministral"]
    num_key_value_heads: int
    sliding_window: int | None = 4096

    def __post_init__(self) -> None:
        if self.layer_types is None:
            has_window = self.sliding_window is not None
            self.layer_types = [
                "sliding_attention" if has_window else "full_attention"
                for _ in range(self.num_hidden_layers)
            ]
        super().__post_init__()


class Qwen2Config(ModelConfig, kw_only=True):
    model_type: Literal["qwen2"]
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28

    def __post_init__(self) -> None:
        self.sliding_window = self.sliding_window if self.use_sliding_window else None
        if self.layer_types is None:
            windows_from = self.num_hidden_layers
            if self.sliding_window is not None:
                windows_from = max(0, min(self.max_window_layers, windows_from))
            self.layer_types = [
                "full_attention" if number < windows_from else "sliding_attention"
                for number in range(self.num_hidden_layers)
            ]
        super().__post_init__()


class Qwen3Config(Qwen2Config, kw_only=True):
    model_type: Literal["qwen3"]
    head_dim: int = 128
    attention_bias: bool = False


class Qwen3MoeConfig(ModelConfig, kw_only=True):
    model_type: Literal["qwen3_moe"]
    num_key_value_heads: int
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    moe_intermediate_size: int
    num_experts: int | UnsetType = msgspec.UNSET
    num_local_experts: int | UnsetType = msgspec.UNSET
    """Another name of `num_experts`."""
    num_experts_per_tok: int
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None

    def __post_init__(self) -> None:
        if (self.num_experts is msgspec.UNSET) == (self.num_local_experts is msgspec.UNSET):
            raise ValueError("either num_experts or num_local_experts is expected")
        if self.num_experts is msgspec.UNSET:
            self.num_experts = self.num_local_experts
        self.sliding_window = self.sliding_window if self.use_sliding_window else None
        super().__post_init__()


class SmolLM3Config(ModelConfig, kw_only=True):
    default_theta = 2_000_000.0

    model_type: Literal["smollm3"]
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: int | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = 4

    def __post_init__(self) -> None:
        if self.no_rope_layers is None:
            self.no_rope_layers = [
                int((number + 1) % self.no_rope_layer_interval != 0)
                for number in range(self.num_hidden_layers)
            ]
        if len(self.no_rope_layers) < self.num_hidden_layers:
            raise ValueError("no_rope_layers does not have one entry for each layer")
        if self.layer_types is None:
            has_windows = self.use_sliding_window and self.sliding_window is not None
            self.layer_types = [
                "sliding_attention" if has_windows and not has_rope else "full_attention"
                for has_rope in self.no_rope_layers[: self.num_hidden_layers]
            ]
        super().__post_init__()


class GemmaConfig(ModelConfig, kw_only=True):
    model_type: Literal["gemma"]
    num_key_value_heads: int
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str | None = None
    tie_word_embeddings: bool = True
    attention_bias: bool = False

    def __post_init__(self) -> None:
        if self.hidden_act == "gelu":  # in the first releases, which mean the approximation
            self.hidden_act = "gelu_pytorch_tanh"
        super().__post_init__()


class Gemma2Config(ModelConfig, kw_only=True):
    model_type: Literal["gemma2"]
    num_key_value_heads: int
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: int = 256
    sliding_window: int | None = 4096
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0

    def __post_init__(self) -> None:
        if self.layer_types is None:
            self.layer_types = _alternate(self.num_hidden_layers)
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("hidden_size is no multiple of num_attention_heads")


class GraniteConfig(ModelConfig, kw_only=True):
    model_type: Literal["granite"]
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: int | float = 1.0
    logits_scaling: int | float = 1.0
    residual_multiplier: int | float = 1.0
    attention_multiplier: int | float = 1.0


class GraniteMoeConfig(GraniteConfig, kw_only=True):
    model_type: Literal["granitemoe"]
    num_local_experts: int
    num_experts_per_tok: int


class MixtralConfig(ModelConfig, kw_only=True):
    default_theta = 1_000_000.0

    model_type: Literal["mixtral"]
    num_key_value_heads: int
    sliding_window: int | None = None
    num_local_experts: int
    num_experts: UnsetType = msgspec.UNSET
    num_experts_per_tok: int


class GptOssConfig(ModelConfig, kw_only=True):
    default_theta = 150_000.0

    model_type: Literal["gpt_oss"]
    num_key_value_heads: int
    head_dim: int = 64
    attention_bias: bool = True
    sliding_window: int | None = 128
    num_local_experts: int
    num_experts: UnsetType = msgspec.UNSET
    num_experts_per_tok: int
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    def __post_init__(self) -> None:
        if not (self.rope_parameters or self.rope_scaling):
            raise ValueError("the default rope parameters are not in the schema")
        if self.layer_types is None:
            self.layer_types = _alternate(self.num_hidden_layers)
        super().__post_init__()


def _alternate(layers: int) -> LayerTypes:
    return ["full_attention" if number % 2 else "sliding_attention" for number in range(layers)]


SCHEMAS: dict[str, type[ModelConfig]] = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "MinistralForCausalLM": MinistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
    "Qwen3MoeForCausalLM": Qwen3MoeConfig,
    "SmolLM3ForCausalLM": SmolLM3Config,
    "GemmaForCausalLM": GemmaConfig,
    "Gemma2ForCausalLM": Gemma2Config,
    "GraniteForCausalLM": GraniteConfig,
    "GraniteMoeForCausalLM": GraniteMoeConfig,
    "MixtralForCausalLM": MixtralConfig,
    "GptOssForCausalLM": GptOssConfig,
}
"""Schemas by architecture."""


def read_by_schema(values: dict[str, Any]) -> ModelConfig | None:
    """Read the content of a config.json. Returns None if it is left to transformers.

    A Mistral whose layers have types is a Ministral, as for transformers' AutoConfig.
    """
    match values.get("architectures"):
        case [str(architecture), *_] if architecture in SCHEMAS:
            schema = SCHEMAS[architecture]
            if values.get("model_type") == "mistral" and "layer_types" in values:
                schema, values = MinistralConfig, values | {"model_type": "ministral"}
            try:
                return msgspec.convert(values, schema)
            except (msgspec.ValidationError, ArithmeticError):
                return None
        case _:
            return None
