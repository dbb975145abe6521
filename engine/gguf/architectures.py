"""Architectures of GGUF files: the config of transformers that says the same, and the names of
their tensors there."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any, cast

from continuo.engine.errors import ModelError
from continuo.engine.gguf.container import GgufFile, GgufMetadata
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
SLIDING_PERIOD = 6
"""Number of layers of a Gemma 3 of which all but the last have a window, again and again."""
GEMMA_LOCAL_THETA = 10_000.0
"""Base of the rotary frequencies of Gemma 3's layers with a window, which files do not state."""
UNAPPLIED: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.scale": (),
    "attention.sliding_window_pattern": (SLIDING_PERIOD,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys that llama.cpp applies in some architectures and we do not, with the values that change
nothing."""
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
    has_centered_norms: bool = False
    """Whether 1 has been added to the weights of norms."""

    def translate(self, name: str) -> str | None:
        """Return the name of a tensor in transformers. Returns None for one that the config
        replaces. Raises KeyError for one that is unknown."""
        if name == ROPE_FACTORS:
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
        Architecture("llama", "llama", "LlamaForCausalLM", LAYER_NAMES, has_permuted_heads=True),
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

    def check_unapplied(self) -> None:
        """Raise ModelError for a key that would have to be applied and is not."""
        for key, accepted in UNAPPLIED.items():
            name = self._prefix + key
            if name in self._file.metadata and (value := self._file.metadata[name]) not in accepted:
                raise self.defect(f"metadata {name} is {_shorten(value)}, which is not supported")

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
    if metadata.count("block_count") > len(file.tensors):
        raise metadata.defect(f"{metadata.count('block_count'):,} layers, but fewer tensors")
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
        "num_hidden_layers": metadata.count("block_count"),
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
    _check_rotation(metadata, config["head_dim"])
    metadata.check_unapplied()
    if architecture.name == "gemma3":
        config |= _gemma_config(metadata, config)
    else:
        config["rope_parameters"] = _rope_parameters(file, metadata)
    return config


def _check_sizes(file: GgufFile, metadata: Metadata, config: dict[str, Any]) -> None:
    """Check the sizes of metadata against the tensors, before memory is taken for them."""
    sizes = {
        EMBEDDING: (config["vocab_size"], config["hidden_size"]),
        "blk.0.ffn_up.weight": (config["intermediate_size"], config["hidden_size"]),
        "blk.0.attn_q.weight": (
            config["num_attention_heads"] * config["head_dim"],
            config["hidden_size"],
        ),
        "blk.0.attn_k.weight": (
            config["num_key_value_heads"] * config["head_dim"],
            config["hidden_size"],
        ),
    }
    for name, expected in sizes.items():
        if name not in file.tensors:
            raise metadata.defect(f"tensor {name} is missing")
        found = file.tensors[name].shape
        if found != expected:
            raise metadata.defect(
                f"tensor {name} has shape {list(found)}, but the metadata requires {list(expected)}"
            )


def _check_rotation(metadata: Metadata, head_dim: int) -> None:
    rotated = metadata.count("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise metadata.defect(f"a rotary embedding of {rotated} of {head_dim} dimensions")
    if metadata.count("attention.value_length", head_dim) != head_dim:
        raise metadata.defect("keys and values of different lengths")
    if metadata.has("expert_count") and metadata.number("expert_count", "num_experts"):
        raise metadata.defect("mixtures of experts are not supported in GGUF")


def _rope_parameters(file: GgufFile, metadata: Metadata) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.number("rope.freq_base", "rope_theta", 10_000.0),
    }
    kind = metadata.text("rope.scaling.type", "none")
    if ROPE_FACTORS in file.tensors:  # of Llama 3.1: each frequency is divided by its factor
        tensor = file.tensors[ROPE_FACTORS]
        if tensor.type.name != "F32":
            raise metadata.defect(f"tensor {ROPE_FACTORS} is {tensor.type.name}")
        raw = file.read_tensor(tensor)
        factors = list(struct.unpack(f"<{len(raw) // 4}f", raw))
        context = metadata.count("context_length")
        return parameters | {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    if kind == "none" and not metadata.has("rope.scale_linear"):
        return parameters
    if kind in ("none", "linear", "yarn"):
        parameters["rope_type"] = "linear" if kind == "none" else kind
        key = "rope.scale_linear" if kind == "none" else "rope.scaling.factor"
        parameters["factor"] = metadata.number(key, "factor")
        if metadata.has("rope.scaling.original_context_length"):
            original = metadata.count("rope.scaling.original_context_length")
            parameters["original_max_position_embeddings"] = original
        return parameters
    raise metadata.defect(f"rope scaling {kind!r} is not supported in GGUF")


def _gemma_config(metadata: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    layers, hidden, heads = (
        config[key] for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    theta = metadata.number("rope.freq_base", "rope_theta", 1_000_000.0)
    full: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if metadata.has("rope.scaling.factor"):
        full |= {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor", "factor")}
    local = metadata.number("rope.freq_base_swa", "rope_theta", GEMMA_LOCAL_THETA)
    more: dict[str, Any] = {}
    if metadata.has("final_logit_softcapping"):
        more["final_logit_softcapping"] = metadata.number(
            "final_logit_softcapping", "final_logit_softcapping"
        )
    return more | {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.count("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % SLIDING_PERIOD else "full_attention"
            for layer in range(layers)
        ],
        "query_pre_attn_scalar": (
            hidden // heads if layers == GEMMA_27B_LAYERS else config["head_dim"]
        ),
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
