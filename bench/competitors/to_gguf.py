"""Convert a checkpoint to a GGUF file with the `gguf` package, and quantise it by llama.cpp.

Usage: python -m continuo.bench.competitors.to_gguf IN OUT [DTYPE]

DTYPE: float32 (default), bfloat16, q8_0, q4_0 or q4_k_m. float32 and bfloat16 keep the values of
the weights. The token list is that of the tokenizer; its merges are left out, because the benchmark
uses only ids.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf  # pyright: ignore[reportMissingImports]

from continuo.bench.competitors.checkpoint import iterate_tensors
from continuo.bench.competitors.gguf_layouts import find_layout

QUANTISED = {
    "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0",
    "q4_0": "LLAMA_FTYPE_MOSTLY_Q4_0",
    "q4_k_m": "LLAMA_FTYPE_MOSTLY_Q4_K_M",
}
"""Names of llama.cpp's formats. Where the rows of a matrix do not divide into the blocks of a
format, llama.cpp uses a larger format for it."""


def ensure_gguf(folder: Path, dtype: str, path: Path) -> Path:
    """Return `path`, the GGUF file of the checkpoint in `folder`; make it unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            made = Path(temporary) / path.name
            if dtype in QUANTISED:
                plain = Path(temporary) / "plain.gguf"
                convert(folder, plain, "bfloat16")
                _quantise(plain, made, dtype)
            else:
                convert(folder, made, dtype)
            made.replace(path)
    return path


def _quantise(plain: Path, path: Path, dtype: str) -> None:
    # Only in the environment of the peers; most conversions do not need it.
    import llama_cpp  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, QUANTISED[dtype])
    params.nthread = os.cpu_count() or 1
    failed = llama_cpp.llama_model_quantize(str(plain).encode(), str(path).encode(), params)
    assert not failed, f"llama_model_quantize returned {failed}"


def read_step_bytes(path: Path) -> float:
    """Return the bytes of weights that a decode step reads, as `count_step_bytes`."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    if "output.weight" in sizes:
        sizes.pop("token_embd.weight", None)
    return float(sum(sizes.values()))


def convert(folder: Path, path: Path, dtype: str) -> None:
    """Convert the checkpoint in `folder` to the GGUF file `path`. `dtype`: float32 or bfloat16 for
    matrices; vectors (norms) are always fp32, as llama.cpp requires."""
    config = json.loads((folder / "config.json").read_text())
    layout = find_layout(config["model_type"])
    kinds = gguf.GGMLQuantizationType
    kind = {"float32": kinds.F32, "bfloat16": kinds.BF16}[dtype]
    writer = gguf.GGUFWriter(path, layout.architecture)
    _add_settings(writer, config)
    layout.add_settings(writer, config)
    _add_tokens(writer, folder, config)
    for name, array in iterate_tensors(folder):
        given, converted = layout.tensor_name(name), layout.convert(name, array, config)
        used = kinds.F32 if layout.is_fp32(given, converted) else kind
        writer.add_tensor(given, gguf.quants.quantize(converted, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: Any, config: dict[str, Any]) -> None:
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(float(theta))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokens(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    names = {n: name for name, n in vocabulary.items()}
    tokens = [names.get(n, f"<unused {n}>") for n in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    # The list of merges must not be empty; this merge never applies, as no text is tokenized.
    writer.add_token_merges([f"{tokens[-2]} {tokens[-1]}"])
    writer.add_eos_token_id(config.get("eos_token_id") or 0)
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    dtypes = sys.argv[3:] or ["float32"]
    ensure_gguf(Path(sys.argv[1]), dtypes[0], Path(sys.argv[2]))
