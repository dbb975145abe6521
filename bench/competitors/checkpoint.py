"""Read the weights of a checkpoint from `model.safetensors`, including bf16, with only numpy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def count_parameters(folder: Path) -> int:
    """Return the number of parameters of a checkpoint."""
    total = 0
    for entry in _read_header(folder)[0].values():
        count = 1
        for length in entry["shape"]:
            count *= length
        total += count
    return total


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
