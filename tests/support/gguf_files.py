"""GGUF files of small checkpoints, written as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

KINDS = gguf.GGMLQuantizationType
CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED


def write_gguf(
    folder: Path,
    path: Path,
    kind: Any = KINDS.F32,
    *,
    kinds: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    pre: str = "qwen2",
) -> dict[str, torch.Tensor]:
    """Convert a checkpoint folder with one shard to the GGUF file `path`. Returns the values that
    the file has, by their names in the folder.

    `kind`: type of the matrices; `kinds`: that of those whose name in the file contains a key;
    `metadata`: further keys, or other values of keys; None removes a key; `pre`: pre-tokenizer. A
    Q4_K, Q5_K or Q6_K has random bytes for weights.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"].removesuffix("_text")
    writer = gguf.GGUFWriter(path, architecture)
    _add_config(writer, config)
    _add_tokenizer(writer, folder, config, pre)
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            _add_value(writer, key, value)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"]
    )
    values: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        array = _change(name, tensor.float(), config).numpy()
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        used = KINDS.F32 if array.ndim == 1 else kind
        for part, other in (kinds or {}).items():
            used = other if part in target else used
        encoded = encode(array, used)
        writer.add_tensor(target, encoded, raw_dtype=used)
        value = torch.from_numpy(gguf.quants.dequantize(encoded, used)).view(tensor.shape)
        values[name] = _change(name, value, config, inverse=True)
    if config.get("rope_parameters", {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def write_foreign_gguf(folder: Path, path: Path, *, pre: str) -> None:
    """Write the tokenizer and the chat template of a checkpoint folder as the GGUF file `path`, of
    an architecture and with a tensor that our engine cannot read."""
    writer = gguf.GGUFWriter(path, "unheard-of")
    _add_tokenizer(writer, folder, json.loads((folder / "config.json").read_text()), pre)
    blocks = np.zeros((4, gguf.GGML_QUANT_SIZES[KINDS.TQ1_0][1]), np.uint8)
    writer.add_tensor("blk.0.unheard_of.weight", blocks, raw_dtype=KINDS.TQ1_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encode(array: np.ndarray, kind: Any) -> np.ndarray:
    """Encode a matrix. A Q4_K, Q5_K or Q6_K gets random values of about the same size instead."""
    if kind not in (KINDS.Q4_K, KINDS.Q5_K, KINDS.Q6_K):
        return gguf.quants.quantize(array, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(array.size)
    blocks = random.integers(0, 256, (len(array), array.shape[1] // block, size), np.uint8)
    scales = random.uniform(0.5, 1.0, (*blocks.shape[:2], 2)) * float(np.abs(array).max())
    if kind is not KINDS.Q6_K:  # d * 63 * 15 (or 31) is the largest; dmin balances it
        largest = 15 if kind is KINDS.Q4_K else 31
        halves = (scales * [1 / 63 / largest, 1 / 126]).astype(np.float16)
        blocks[..., :4] = halves.view(np.uint8).reshape(*blocks.shape[:2], 4)
    else:
        halves = (scales[..., :1] / (128 * 32)).astype(np.float16)
        blocks[..., -2:] = halves.view(np.uint8)
    return blocks.reshape(len(array), -1)


def _change(
    name: str, tensor: torch.Tensor, config: dict[str, Any], *, inverse: bool = False
) -> torch.Tensor:
    """Change a tensor as llama.cpp's converter does, or undo the change."""
    if config["model_type"] == "llama":
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{part}." in name:
                middle = (-1, 2) if inverse else (2, -1)
                rows = tensor.view(config[heads], *middle, *tensor.shape[1:])
                return rows.transpose(1, 2).reshape(tensor.shape).contiguous()
    if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
        return tensor - 1 if inverse else tensor + 1
    return tensor


def _llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """Return the divisors of the rotary frequencies that the parameters of Llama 3.1 amount to."""
    rope, dim = config["rope_parameters"], config["head_dim"]
    lengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] / lengths
    low, high, factor = (rope[f"{name}factor"] for name in ("low_freq_", "high_freq_", ""))
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _add_config(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1e4)}
    rope = rope.get("full_attention", rope)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "gemma3" in config["model_type"]:
        writer.add_sliding_window(config["sliding_window"])


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any], pre: str) -> None:
    path = folder / "tokenizer.json"
    size = config["vocab_size"]
    if not path.exists():  # a checkpoint of weights alone
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([f"<{id}>" for id in range(size)])
        writer.add_token_merges(["<0> <1>"])
        return
    state = json.loads(path.read_text())
    vocabulary: dict[str, int] = dict(state["model"]["vocab"])
    added = {token["content"]: token for token in state["added_tokens"]}
    vocabulary |= {text: token["id"] for text, token in added.items()}
    texts = {id: text for text, id in vocabulary.items()}
    tokens = [texts.get(id, f"[PAD{id}]") for id in range(size)]
    types = [_token_type(text, added) for text in tokens]
    merges = [" ".join(merge) for merge in state["model"]["merges"]]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if state["model"]["byte_fallback"]:
        writer.add_tokenizer_model("llama")
        ranks = {"".join(merge.split(" ", 1)): -n for n, merge in reversed([*enumerate(merges)])}
        writer.add_token_scores([float(ranks.get(token, -1e6)) for token in tokens])
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for role, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        if settings.get(f"{role}_token") in vocabulary:
            add(vocabulary[settings[f"{role}_token"]])
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())
    elif settings.get("chat_template"):
        writer.add_chat_template(settings["chat_template"])


def _token_type(text: str, added: dict[str, dict[str, Any]]) -> int:
    if text == "<unk>":
        return gguf.TokenType.UNKNOWN
    if text in added:
        return CONTROL if added[text]["special"] else USER_DEFINED
    is_byte = len(text) == len("<0x00>") and text.startswith("<0x")
    return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL


def _add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_float32(key, value)
