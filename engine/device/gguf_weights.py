# pyright: basic
"""The tensors of a GGUF file, under the names and in the form of a checkpoint of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from continuo.engine.device.quantization import QuantizedMatrix, from_gguf
from continuo.engine.errors import ModelError
from continuo.engine.gguf.architectures import find_architecture, permuted_heads
from continuo.engine.gguf.container import GgufFile, GgufTensor, open_gguf
from continuo.engine.gguf.folder import GGUF_FILE

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def is_gguf(folder: Path) -> bool:
    """Return whether a checkpoint folder stands for a GGUF file."""
    return (folder / GGUF_FILE).exists()


def list_gguf(folder: Path) -> set[str]:
    """Return the names of the tensors in a checkpoint of transformers. Raises ModelError."""
    return {name for name, _ in _iter_names(open_gguf(folder / GGUF_FILE))}


def count_gguf_parameters(folder: Path) -> int:
    tensors = open_gguf(folder / GGUF_FILE).tensors.values()
    return sum(int(np.prod(tensor.shape)) for tensor in tensors)


def iter_gguf(folder: Path) -> Iterator[tuple[str, Tensor | QuantizedMatrix, str]]:
    """Yield name, value and place, for errors, of all tensors. Raises ModelError."""
    file = open_gguf(folder / GGUF_FILE)
    has_one_added = find_architecture(file).has_one_added
    data = np.memmap(file.path, np.uint8, "c")
    for name, tensor in _iter_names(file):
        value = _view(tensor, torch.from_numpy(data[tensor.begin : tensor.end]))
        place = f"{file.path.name}: {tensor.name}"
        if (heads := permuted_heads(file, tensor.name)) > 0:
            value = _restore_rows(value, heads, place)
        if has_one_added(tensor.name) and isinstance(value, Tensor):
            value = value.float() - 1.0
        yield name, value, place


def _iter_names(file: GgufFile) -> Iterator[tuple[str, GgufTensor]]:
    architecture = find_architecture(file)
    for tensor in file.tensors.values():
        name = architecture.translate(tensor.name)
        if name is not None:
            yield name, tensor


def _view(tensor: GgufTensor, data: Tensor) -> Tensor | QuantizedMatrix:
    if tensor.type.name in DTYPES:
        return data.view(DTYPES[tensor.type.name]).view(tensor.shape)
    return from_gguf(tensor.type, data.view(tensor.shape[0], -1))


def _restore_rows(
    value: Tensor | QuantizedMatrix, heads: int, place: str
) -> Tensor | QuantizedMatrix:
    """Restore the order of the rows of queries or keys. Raises ModelError."""
    if value.shape[0] % (2 * heads):
        raise ModelError(f"{place} has {value.shape[0]} rows for {heads} heads")
    if isinstance(value, QuantizedMatrix):
        return QuantizedMatrix(value.format, _separate_halves(value.data, heads))
    return _separate_halves(value, heads)


def _separate_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of queries or keys, in which the two dimensions that are rotated together
    are adjacent, so that those of the first halves come first."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
