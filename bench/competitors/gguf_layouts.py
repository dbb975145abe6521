"""How llama.cpp expects the architectures of the benchmarks in a GGUF file: names, order of values,
and precision."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Config = Mapping[str, Any]
"""Contents of a checkpoint's config.json."""

MODEL_TENSOR_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_QWEN3_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_QWEN35_NAMES = {
    **_QWEN3_NAMES,
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


class Layout(NamedTuple):
    """The layout of one architecture."""

    architecture: str
    """The name that llama.cpp gives it."""
    layer_names: Mapping[str, str]
    """Name in the file by the name in the checkpoint, both within a layer."""
    add_settings: Callable[[Any, Config], None]
    """Writes what this architecture has beside the settings of every one, with a GGUFWriter."""
    convert: Callable[[str, Any, Config], Any]
    """Converts the values of a tensor, by its name in the checkpoint."""
    fp32_names: frozenset[str] = frozenset()
    """Names in the file, within a layer, of the matrices that llama.cpp reads only in fp32."""

    def tensor_name(self, name: str) -> str:
        """Return the name of a tensor in the file: model.layers.3.mlp.up_proj.weight ->
        blk.3.ffn_up.weight."""
        if name in MODEL_TENSOR_NAMES:
            return MODEL_TENSOR_NAMES[name]
        number, _, inner = name.removeprefix("model.layers.").partition(".")
        return f"blk.{int(number)}.{self.layer_names[inner]}"

    def is_fp32(self, name: str, array: Any) -> bool:
        """Return whether a tensor of the file is in fp32 whatever the precision of the matrices."""
        return array.ndim == 1 or name.split(".", 2)[-1] in self.fp32_names


def find_layout(model_type: str) -> Layout:
    """Return the layout of a checkpoint by the `model_type` of its config.json. Raises ValueError
    if there is none."""
    try:
        return _LAYOUTS[model_type]
    except KeyError:
        known = " and ".join(_LAYOUTS)
        raise ValueError(f"{model_type} has no layout here; {known} have") from None


def _add_hybrid_settings(writer: Any, config: Config) -> None:
    kinds, rope = config["layer_types"], config["rope_parameters"]
    value_heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * value_heads)
    writer.add_full_attention_interval(kinds.index("full_attention") + 1)
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    # Of the three positions of an image. Those of a text are equal, so that any division will do.
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def _convert_hybrid(name: str, array: Any, config: Config) -> Any:
    """Convert as llama.cpp computes. It scales norms by the weight as it is, where the model adds 1
    to the weight, and takes -exp(A_log) as the decay. It interleaves the value heads of all key
    heads: with two key heads of two value heads each, 0 2 1 3 instead of 0 1 2 3."""
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return array + 1
    _, _, part = name.partition("linear_attn.")
    part = part.removesuffix(".weight")
    if not part or part == "norm":
        return array
    key_size = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    size = config["linear_value_head_dim"]
    match part:
        case "in_proj_qkv" | "conv1d":
            flat = array.squeeze()
            values = _interleave_heads(flat[key_size:], size, config)
            return np.concatenate([flat[:key_size], values])
        case "in_proj_z":
            return _interleave_heads(array, size, config)
        case "out_proj":
            return np.ascontiguousarray(_interleave_heads(array.T, size, config).T)
        case "A_log":
            return _interleave_heads(-np.exp(array), 1, config)
        case _:
            return _interleave_heads(array, 1, config)


def _interleave_heads(rows: Any, size: int, config: Config) -> Any:
    """Reorder the rows of all value heads, `size` of each, from one key head after another."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    grouped = rows.reshape(keys, values // keys, size, *rows.shape[1:])
    return grouped.swapaxes(0, 1).reshape(rows.shape)


_LAYOUTS = {
    "qwen3": Layout("qwen3", _QWEN3_NAMES, lambda *_: None, lambda _name, array, _config: array),
    "qwen3_5_text": Layout(
        "qwen35",
        _QWEN35_NAMES,
        _add_hybrid_settings,
        _convert_hybrid,
        frozenset({"ssm_conv1d.weight"}),
    ),
}
