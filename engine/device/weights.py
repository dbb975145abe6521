# pyright: basic
"""Checkpoints: locate or download them, and copy their tensors to parameters.

Every defect of a checkpoint raises ModelError, which describes it in one line.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from continuo.engine.architectures.config import read_json
from continuo.engine.architectures.refusals import quantized_checkpoint
from continuo.engine.device.gguf_weights import count_gguf_parameters, is_gguf, iter_gguf, list_gguf
from continuo.engine.device.model import WeightTarget
from continuo.engine.device.quantization import QuantizedMatrix, is_quantizable, quantize
from continuo.engine.errors import ModelError, first_line
from continuo.engine.gguf.container import GgmlType
from continuo.engine.local_checkpoint import find_gguf_file, find_local_checkpoint

ProgressCallback = Callable[[str, float], None]
"""Called with (description of the current work, progress in [0, 1])."""

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth")
"""Patterns of files with pickled weights, which are not read: they can execute code."""


def resolve(model: str, revision: str | None, progress: ProgressCallback) -> Path:
    """Return the checkpoint folder of `model`: the bundled `demo`, a folder in the Hugging Face
    layout, or a hub id, which is downloaded to the usual Hugging Face cache unless it is already
    there. Raises ModelError."""
    folder = find_local_checkpoint(model)
    if folder is not None:
        return folder
    # The library of the hub is slow to import.
    from continuo.engine.device.hub_download import fetch  # noqa: PLC0415

    return fetch(model, revision, progress)


@dataclass(frozen=True)
class CheckpointInfo:
    """Dtype and size of a checkpoint's tensors."""

    dtype: torch.dtype
    """Dtype of one tensor, assumed for all of them."""
    parameter_count: int
    """Number of parameters, estimated from the sizes of the files."""


def read_checkpoint_info(folder: Path) -> CheckpointInfo:
    if is_gguf(folder):
        return CheckpointInfo(torch.bfloat16, count_gguf_parameters(folder))
    paths = [path for path, _ in _find_shards(folder, None)]
    try:
        with safe_open(paths[0], framework="pt", device="cpu") as shard:
            dtypes = (shard.get_tensor(name).dtype for name in sorted(shard.keys()))
            dtype = next((each for each in dtypes if each.is_floating_point), torch.float32)
        return CheckpointInfo(dtype, sum(path.stat().st_size for path in paths) // dtype.itemsize)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{paths[0]}: cannot be read: {first_line(error)}") from error


MXFP4_PARTS = ("_blocks", "_scales")
"""Suffixes of the two tensors that a matrix in MXFP4 is stored as."""


def list_tensors(folder: Path) -> set[str]:
    """Return the names of all tensors of a checkpoint. A matrix in MXFP4 has one name, without the
    suffixes of its parts. Raises ModelError."""
    if is_gguf(folder):
        return list_gguf(folder)
    names: set[str] = set()
    for path, expected in _find_shards(folder, None):
        if expected is None:
            try:
                with safe_open(path, framework="pt", device="cpu") as shard:
                    expected = set(shard.keys())
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: cannot be read: {first_line(error)}") from error
        names |= {_matrix_name(name) for name in expected}
    return names


def load_weights(
    folder: Path,
    targets: dict[str, WeightTarget],
    progress: ProgressCallback,
    *,
    keeps_quantized: bool = False,
    quantize_to: GgmlType | None = None,
) -> None:
    """Copy the tensors of a checkpoint to their targets, converted to the dtype and device of the
    target.

    `keeps_quantized`: quantized matrices are kept so by the layers that can, else dequantized;
    `quantize_to`: format of the other matrices of those layers (None: elements). At most one
    checkpoint tensor is in memory besides the parameters. Raises ModelError.
    """
    missing = dict(targets)
    tensors = iter_gguf(folder) if is_gguf(folder) else _iter_safetensors(folder, targets)
    for name, tensor, place in tensors:
        if name not in missing:
            continue
        target = missing.pop(name)
        tensor = _convert(tensor, target, place)
        if not keeps_quantized or not _keep_quantized(tensor, target, quantize_to, place):
            elements = tensor.dequantize() if isinstance(tensor, QuantizedMatrix) else tensor
            target.tensor.copy_(elements)
        progress("loading weights", 1 - len(missing) / len(targets))
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelError(f"{folder}: tensor {min(missing)} is missing{more}")
    for layer in {target.layer for target in targets.values()}:
        if layer is not None:
            layer.settle()


def _iter_safetensors(
    folder: Path, targets: dict[str, WeightTarget]
) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Yield name, value and place, for errors, of the tensors `targets` that a checkpoint has."""
    parts: dict[str, torch.Tensor] = {}
    stored = {f"{name}{suffix}" for name in targets for suffix in ("", *MXFP4_PARTS)}
    for path, names in _find_shards(folder, stored):
        try:
            with safe_open(path, framework="pt", device="cpu") as shard:
                present = set(shard.keys())
                for name in sorted(present if names is None else names & present):
                    matrix = _matrix_name(name)
                    if matrix not in targets:
                        continue
                    tensor = shard.get_tensor(name)
                    if matrix != name:
                        parts[name] = tensor
                        blocks, scales = (parts.get(f"{matrix}{each}") for each in MXFP4_PARTS)
                        if blocks is None or scales is None:
                            continue
                        tensor = _decode_mxfp4(blocks, scales, targets[matrix].tensor.dtype)
                        parts.clear()
                    yield matrix, tensor, f"{path.name}: {matrix}"
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: cannot be read: {first_line(error)}") from error


def _matrix_name(name: str) -> str:
    """Return the name of the matrix that a tensor is, or is a part of."""
    for suffix in MXFP4_PARTS:
        name = name.removesuffix(suffix)
    return name


MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a number in E2M1, by its lower three bits; the fourth is the sign."""
MXFP4_SCALE_BIAS = 127
"""Exponent of a scale (E8M0) that stands for 1."""


def _decode_mxfp4(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Decode matrices in MXFP4 (OCP Microscaling): blocks [matrix, row, block, 16] of 32 numbers
    each, the earlier one of a byte in its lower half, and scales [matrix, row, block] -> [matrix,
    column, row], the transposed matrices."""
    values = torch.tensor([*MXFP4_VALUES, *(-value for value in MXFP4_VALUES)], dtype=torch.float32)
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), -1)  # by byte
    exponents = scales.to(torch.int32) - MXFP4_SCALE_BIAS
    matrices: list[torch.Tensor] = []
    for matrix, exponent in zip(blocks, exponents, strict=True):
        numbers = torch.ldexp(pairs[matrix.int()].flatten(-2), exponent[..., None])
        matrices.append(numbers.flatten(-2).to(dtype).T)
    return torch.stack(matrices)


def _find_shards(folder: Path, names: Iterable[str] | None) -> list[tuple[Path, set[str] | None]]:
    """Find the files that contain the tensors `names` (None: all tensors). Returns pairs of a file
    and the names to read from it (None: all that it has).

    Raises ModelError if one of the files is missing.
    """
    index = folder / INDEX_FILE
    if not index.exists():
        if not (folder / SINGLE_FILE).exists():
            raise _missing_weights(folder)
        return [(folder / SINGLE_FILE, None)]
    file_of = read_json(index).get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise ModelError(f"{index}: has no weight_map")
    names_by_file: dict[str, set[str]] = {}
    for name in file_of if names is None else names:
        if name in file_of:
            names_by_file.setdefault(file_of[name], set()).add(name)
    for file in sorted(names_by_file):
        if not (folder / file).exists():
            raise ModelError(f"{folder}: shard {file} is missing")
    return [(folder / file, found) for file, found in sorted(names_by_file.items())]


def _missing_weights(folder: Path) -> ModelError:
    """Create the error of a folder without weights in safetensors."""
    if (file := find_gguf_file(folder)) is not None:
        name = shlex.quote(str(file))
        return ModelError(
            f"{folder}: has no weights in safetensors: name its GGUF file, as in --model {name}"
        )
    pickled = min((path.name for each in PICKLED for path in folder.glob(each)), default=None)
    if pickled is not None:
        return ModelError(
            f"{folder}: has its weights in {pickled}, which is not read: use a checkpoint in "
            f"safetensors, or a GGUF file"
        )
    return ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} exists")


def _convert(
    tensor: torch.Tensor | QuantizedMatrix, target: WeightTarget, place: str
) -> torch.Tensor | QuantizedMatrix:
    """Check the shape and type of a tensor, and convert it as its target requires."""
    if tuple(tensor.shape) != target.shape:
        found, expected = list(tensor.shape), list(target.shape)
        raise ModelError(f"{place} has shape {found}, but the config requires {expected}")
    if isinstance(tensor, QuantizedMatrix):
        if target.convert is None:
            return tensor
        if target.layer is None:
            return target.convert(tensor.dequantize())
        return QuantizedMatrix(tensor.format, target.convert(tensor.data))
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise quantized_checkpoint(place, str(tensor.dtype))
    return tensor if target.convert is None else target.convert(tensor)


def _keep_quantized(
    tensor: torch.Tensor | QuantizedMatrix,
    target: WeightTarget,
    quantize_to: GgmlType | None,
    place: str,
) -> bool:
    """Give a tensor to its layer quantized, if it is so or becomes so. Returns whether its elements
    are not needed any more."""
    if target.layer is None:
        return False
    if isinstance(tensor, QuantizedMatrix):
        if quantize_to is not None:
            raise ModelError(f"{place} is {tensor.format.name}: it cannot be quantized again")
    elif quantize_to is not None and is_quantizable(tensor):
        tensor = quantize(tensor, quantize_to)
    else:
        return False
    target.layer.quantized[target.first_row] = tensor
    return not target.layer.is_tied
