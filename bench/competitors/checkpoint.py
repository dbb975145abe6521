"""Read the weights of a checkpoint from `model.safetensors`, including bf16, with only numpy."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def count_parameters(folder: Path) -> int:
    """Return the number of parameters of a checkpoint."""
    return sum(math.prod(entry["shape"]) for entry in _read_header(folder)[0].values())


def count_step_bytes(folder: Path, bytes_each: float) -> float:
    """Return the bytes of weights that a decode step reads: all, but of the embedding only if the
    output head is tied to it; else a step reads one row of it for each token."""
    header = _read_header(folder)[0]
    if "lm_head.weight" in header:
        header.pop("model.embed_tokens.weight", None)
    return sum(math.prod(entry["shape"]) for entry in header.values()) * bytes_each


def count_kv_bytes(folder: Path, bytes_each: int) -> int:
    """Return the bytes of the keys and values of one token in all layers that attend."""
    config = json.loads((folder / "config.json").read_text())
    attending = sum(map(_attends, _list_layers(config)))
    return 2 * attending * config["num_key_value_heads"] * config["head_dim"] * bytes_each


def is_all_attention(folder: Path) -> bool:
    """Return whether no layer of a checkpoint keeps a recurrent state, which cannot be cut."""
    return all(map(_attends, _list_layers(json.loads((folder / "config.json").read_text()))))


def _list_layers(config: dict[str, Any]) -> list[str]:
    return config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]


def _attends(layer: str) -> bool:
    return "attention" in layer and "linear" not in layer


def iterate_tensors(folder: Path) -> "Iterator[tuple[str, Any]]":
    """Yield the name of each tensor and its values as a numpy array in fp32."""
    header, begin = _read_header(folder)
    data = np.memmap(folder / "model.safetensors", mode="r", offset=begin)
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = data[first:end].view(NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        yield name, array.astype(np.float32)


def _read_header(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the header of the safetensors file (dtype, shape and offsets by tensor name), and the
    offset in the file at which the tensor data begins."""
    with (folder / "model.safetensors").open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length
