"""Architectures of GGUF files: the config of transformers that says the same, and the names of
their tensors there."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, cast

from continuo.engine.errors import ModelError
from continuo.engine.gguf.container import GgufFile, GgufMetadata
from continuo.engine.gguf.metadata_keys import REFUSED_SIZES, check_keys
from continuo.engine.number_ranges import find_number_problem

EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
OUTER_NAMES = {
    EMBEDDING: "model.embed_tokens.weight",
    HEAD: "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_LAYER_NAMES = {
    **LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

CONTEXT_TOKENS_MAX = 1 << 24
"""Longest context of a file that is served."""
DEFAULT_THETA = 10_000.0
"""Base of the rotary frequencies, where a file does not state it."""
SLIDING_PERIOD = 6
"""Number of layers of a Gemma 3 of which all but the last have a window, again and again."""
GEMMA_27B_LAYERS = 62
"""Number of layers of the only Gemma 3 whose queries are scaled by the hidden size; llama.cpp, too,
recognizes it by this number."""


@dataclass(frozen=True)
class Architecture:
    name: str
    """Value of `general.architecture`."""
    model_type: str
    class_name: str
    """Class of transformers."""
    layer_names: dict[str, str]
    has_permuted_heads: bool = False
    """Whether the rows of queries and keys have been reordered for another form of rotation."""
    has_rope_factors: bool = False
    """Whether a tensor may have factors of the rotary frequencies."""
    has_centered_norms: bool = False
    """Whether 1 has been added to the weights of norms."""

    def translate(self, name: str) -> str | None:
        """Return the name of a tensor in transformers. Returns None for one that the config
        replaces. Raises KeyError for one that is unknown."""
        if name == ROPE_FACTORS and self.has_rope_factors:
            return None
        found = _LAYER_TENSOR.fullmatch(name)
        if found is None:
            return OUTER_NAMES[name]
        number, inner, kind = found.groups()
        return f"model.layers.{int(number)}.{self.layer_names[inner]}.{kind}"

    def has_one_added(self, name: str) -> bool:
        """Return whether a tensor is the weight of a norm to which 1 has been added."""
        return self.has_centered_norms and name.endswith("norm.weight")


ARCHITECTURES = {
    each.name: each
    for each in (
        Architecture(
            "llama",
            "llama",
            "LlamaForCausalLM",
            LAYER_NAMES,
            has_permuted_heads=True,
            has_rope_factors=True,
        ),
        Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", LAYER_NAMES),
        Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", LAYER_NAMES),
        Architecture(
            "gemma3",
            "gemma3_text",
            "Gemma3ForCausalLM",
            GEMMA_LAYER_NAMES,
            has_centered_norms=True,
        ),
    )
}


class Metadata:
    """Metadata of a file, checked as it is read."""

    def __init__(self, file: GgufMetadata) -> None:
        self._file, self._prefix = file, ""
        name = self.text("general.architecture")
        self.architecture = name
        self._prefix = f"{name}."

    def text(self, key: str, default: str | None = None) -> str:
        return self._get(key, str, default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self._get(key, int, default)
        if value < 1:
            raise self.defect(f"{self._prefix}{key} is {value}")
        return value

    def number(self, key: str, field: str, default: float | None = None) -> float:
        """`field`: name of the field of a config that has this number."""
        value = float(self._get(key, (int, float), default))
        if (problem := find_number_problem(field, value)) is not None:
            raise self.defect(f"metadata {self._prefix}{key} {problem}")
        return value

    def has(self, key: str) -> bool:
        return self._prefix + key in self._file.metadata

    def value(self, key: str, default: object) -> object:
        return self._file.metadata.get(self._prefix + key, default)

    def defect(self, reason: str) -> ModelError:
        return ModelError(f"{self._file.path}: {reason}")

    def _get(self, key: str, kind: Any, default: Any) -> Any:
        value = self._file.metadata.get(self._prefix + key, default)
        if value is None:
            raise self.defect(f"metadata {self._prefix}{key} is missing")
        if isinstance(value, list):  # by layer
            values = cast(list[object], value)
            value = values[0] if values and values.count(values[0]) == len(values) else values
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.defect(f"metadata {self._prefix}{key} is {_shorten(value)}")
        return value


def find_architecture(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises ModelError if it is not supported, or has a tensor
    that it cannot have."""
    name = Metadata(file).architecture
    if name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise ModelError(
            f"{file.path}: architecture {name} is not supported in GGUF; supported are {supported}"
        )
    architecture = ARCHITECTURES[name]
    for tensor in file.tensors:
        try:
            architecture.translate(tensor)
        except KeyError:
            raise ModelError(f"{file.path}: a {name} with a tensor {tensor}") from None
    return architecture


def permuted_heads(file: GgufFile, tensor: str) -> int:
    """Return the number of heads in whose rows the dimensions of a tensor were reordered, or 0."""
    metadata = Metadata(file)
    if not ARCHITECTURES[metadata.architecture].has_permuted_heads:
        return 0
    if ".attn_q." in tensor:
        return metadata.count("attention.head_count")
    if ".attn_k." in tensor:
        return metadata.count("attention.head_count_kv", metadata.count("attention.head_count"))
    return 0


def build_config(file: GgufFile) -> dict[str, Any]:
    """Return the content of config.json. Raises ModelError."""
    architecture, metadata = find_architecture(file), Metadata(file)
    if EMBEDDING not in file.tensors:
        raise metadata.defect(f"tensor {EMBEDDING} is missing")
    heads = metadata.count("attention.head_count")
    hidden = metadata.count("embedding_length")
    numbers = {found[1] for name in file.tensors if (found := _LAYER_TENSOR.fullmatch(name))}
    if (layers := metadata.count("block_count")) != len(numbers):
        raise metadata.defect(
            f"block_count is {layers:,}, but {len(numbers):,} layers have tensors"
        )
    if metadata.count("context_length") > CONTEXT_TOKENS_MAX:
        raise metadata.defect(
            f"a context of {metadata.count('context_length'):,} tokens; the limit is "
            f"{CONTEXT_TOKENS_MAX:,}"
        )
    config: dict[str, Any] = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", heads),
        "head_dim": metadata.count("attention.key_length", hidden // heads),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        "max_position_embeddings": metadata.count("context_length"),
        "tie_word_embeddings": HEAD not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "use_sliding_window": False,
    }
    _check_sizes(file, metadata, config)
    _check_lengths(metadata, config["head_dim"])
    check_keys(file.path, architecture.name, file.metadata)
    rope = _rope_parameters(file, metadata)
    if architecture.name == "gemma3":
        return config | _gemma_config(metadata, config, rope)
    return config | {"rope_parameters": rope}


def _check_sizes(file: GgufFile, metadata: Metadata, config: dict[str, Any]) -> None:
    """Check the sizes of metadata against the tensors, before memory is taken for them."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    sizes = {
        EMBEDDING: ("embedding_length", config["vocab_size"]),
        "blk.0.ffn_up.weight": ("feed_forward_length", config["intermediate_size"]),
        "blk.0.attn_q.weight": (
            "attention.head_count, attention.key_length",
            config["num_attention_heads"] * head_dim,
        ),
        "blk.0.attn_k.weight": (
            "attention.head_count_kv, attention.key_length",
            config["num_key_value_heads"] * head_dim,
        ),
    }
    for name, (keys, rows) in sizes.items():
        if name not in file.tensors:
            raise metadata.defect(f"tensor {name} is missing")
        found = file.tensors[name].shape
        if found != (rows, hidden):
            raise metadata.defect(
                f"tensor {name} has shape {list(found)}, but the metadata ({keys}) requires "
                f"{[rows, hidden]}"
            )


def _check_lengths(metadata: Metadata, head_dim: int) -> None:
    for key in ("rope.dimension_count", "attention.value_length", *REFUSED_SIZES):
        if (length := metadata.count(key, head_dim)) != head_dim:
            raise metadata.defect(f"{key} is {length}, but the length of a key is {head_dim}")


def _rope_parameters(file: GgufFile, metadata: Metadata) -> dict[str, Any]:
    """Return the rotary embedding of the layers without a window."""
    parameters = {
        "rope_theta": metadata.number("rope.freq_base", "rope_theta", DEFAULT_THETA),
        **_rope_scaling(metadata),
    }
    if ROPE_FACTORS not in file.tensors:
        return parameters
    if parameters["rope_type"] != "default":
        raise metadata.defect(f"rope.scaling.type beside the tensor {ROPE_FACTORS}")
    return parameters | _rope_factors(file, metadata)


def _rope_scaling(metadata: Metadata) -> dict[str, Any]:
    kind = metadata.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise metadata.defect(f"rope.scaling.type {kind!r} is not supported in GGUF")
    factors = [key for key in ("rope.scaling.factor", "rope.scale_linear") if metadata.has(key)]
    if kind == "none" or not factors:
        return {"rope_type": "default"}
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": metadata.number(factors[0], "factor"),
    }
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = metadata.count(
            "rope.scaling.original_context_length", metadata.count("context_length")
        )
    return scaling


def _rope_factors(file: GgufFile, metadata: Metadata) -> dict[str, Any]:
    """Return the scaling of Llama 3.1, which divides each frequency by its factor."""
    tensor = file.tensors[ROPE_FACTORS]
    if tensor.type.name != "F32":
        raise metadata.defect(f"tensor {ROPE_FACTORS} is {tensor.type.name}")
    raw = file.read_tensor(tensor)
    factors = list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": metadata.count("context_length"),
    }


def _gemma_config(
    metadata: Metadata, config: dict[str, Any], rope: dict[str, Any]
) -> dict[str, Any]:
    """`rope`: the rotary embedding of the layers without a window."""
    layers, hidden, heads = (
        config[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    theta = metadata.number("rope.freq_base_swa", "rope_theta", DEFAULT_THETA)
    more: dict[str, Any] = {}
    if metadata.has("final_logit_softcapping"):
        more["final_logit_softcapping"] = metadata.number(
            "final_logit_softcapping", "final_logit_softcapping"
        )
    return more | {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.count("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if is_sliding else "full_attention"
            for is_sliding in _sliding_pattern(metadata, layers)
        ],
        "query_pre_attn_scalar": (
            hidden // heads if layers == GEMMA_27B_LAYERS else config["head_dim"]
        ),
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": theta},
        },
    }


def _sliding_pattern(metadata: Metadata, layers: int) -> list[bool]:
    """Return whether each layer has a window: by a list, or by a period whose last layer has none.
    Period 0: all layers have one."""
    key = "attention.sliding_window_pattern"
    stated = metadata.value(key, SLIDING_PERIOD)
    match stated:
        case bool():
            pass
        case int() if stated >= 0:
            return [not stated or (layer + 1) % stated > 0 for layer in range(layers)]
        case list() if len(cast(list[object], stated)) == layers:
            return [bool(each) for each in cast(list[object], stated)]
        case _:
            pass
    raise metadata.defect(f"metadata {key} is {_shorten(stated)} for {layers} layers")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
