# pyright: basic
"""Checkpoints: locate or download them, read their config, and copy their tensors to parameters.

Every defect of a checkpoint raises ModelError, which describes it in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open
from tqdm.auto import tqdm
from transformers import AutoConfig

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.device.model import WeightTarget
from continuo.engine.errors import ModelError

ProgressCallback = Callable[[str, float], None]
"""Called with (description of the current work, progress in [0, 1])."""

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
FETCH_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Glob patterns of the files of a hub repository that are downloaded."""


def resolve(model: str, revision: str | None, progress: ProgressCallback) -> Path:
    """Return the checkpoint folder of `model`: the bundled `demo`, a folder in the Hugging Face
    layout, or a hub id, which is downloaded to the usual Hugging Face cache unless it is already
    there. Raises ModelError."""
    if model == BUNDLED_MODEL:
        folder = Path(__file__).parent.parent / "bundled" / BUNDLED_MODEL
    elif Path(model).expanduser().exists() or model.startswith((".", "/", "~")):
        folder = Path(model).expanduser()
    else:
        return _fetch(model, revision, progress)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    return folder


def _fetch(model: str, revision: str | None, progress: ProgressCallback) -> Path:
    options: dict[str, Any] = {"revision": revision, "allow_patterns": FETCH_PATTERNS}
    bar = _reporting_bar(model, progress)
    try:
        return Path(huggingface_hub.snapshot_download(model, tqdm_class=bar, **options))
    except HFValidationError as error:
        raise ModelError(f"{model}: neither a folder nor a hub id") from error
    except GatedRepoError as error:
        raise ModelError(
            f"{model}: the hub requires a login and acceptance of the model's licence"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{model}: the hub has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{model}: no such folder, and the hub has no such model") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"{model}: not in the local cache, and the hub is unreachable") from error
    except Exception as error:
        raise ModelError(f"{model}: download failed: {_first_line(error)}") from error


def _reporting_bar(model: str, progress: ProgressCallback) -> type:
    """Create a tqdm class that draws nothing and reports the share of bytes (or files) fetched."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": False, "gui": True}))

        def display(self, *args: Any, **kwargs: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> bool | None:
            done = super().update(n)
            if self.total:
                progress(f"fetching {model}", min(1.0, self.n / self.total))
            return done

    return Bar


def read_config(folder: Path) -> Any:
    """Read the transformers config of a checkpoint folder. Raises ModelError."""
    path = folder / "config.json"
    _read_json(path)
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelError(f"{path}: {_first_line(error)}") from error
    if getattr(config, "quantization_config", None):
        raise ModelError(f"{folder}: quantized checkpoints are not supported")
    return config


@dataclass(frozen=True)
class CheckpointInfo:
    """Dtype and size of a checkpoint's tensors."""

    dtype: torch.dtype
    """Dtype of one tensor, assumed for all of them."""
    parameter_count: int
    """Number of parameters, estimated from the sizes of the files."""


def read_checkpoint_info(folder: Path) -> CheckpointInfo:
    paths = [path for path, _ in _find_shards(folder, None)]
    try:
        with safe_open(paths[0], framework="pt", device="cpu") as shard:
            names = sorted(shard.keys())
            dtype = shard.get_tensor(names[0]).dtype if names else torch.float32
        return CheckpointInfo(dtype, sum(path.stat().st_size for path in paths) // dtype.itemsize)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{paths[0]}: cannot be read: {_first_line(error)}") from error


def load_weights(
    folder: Path, targets: dict[str, WeightTarget], progress: ProgressCallback
) -> None:
    """Copy the tensors of a checkpoint to their targets, shard by shard, converted to the dtype and
    device of the target.

    At most one checkpoint tensor is in memory besides the parameters. Raises ModelError.
    """
    missing = dict(targets)
    for path, names in _find_shards(folder, targets):
        try:
            with safe_open(path, framework="pt", device="cpu") as shard:
                present = set(shard.keys())
                for name in sorted(present if names is None else names):
                    target = missing.pop(name, None) if name in present else None
                    if target is None:
                        continue
                    _copy_tensor(shard.get_tensor(name), target, f"{path.name}: {name}")
                    progress("loading weights", 1 - len(missing) / len(targets))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: cannot be read: {_first_line(error)}") from error
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelError(f"{folder}: tensor {min(missing)} is missing{more}")


def _find_shards(folder: Path, names: Iterable[str] | None) -> list[tuple[Path, set[str] | None]]:
    """Find the files that contain the tensors `names` (None: all tensors). Returns pairs of a file
    and the names to read from it (None: all that it has).

    Raises ModelError if one of the files is missing.
    """
    index = folder / INDEX_FILE
    if not index.exists():
        if not (folder / SINGLE_FILE).exists():
            raise ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} exists")
        return [(folder / SINGLE_FILE, None)]
    file_of = _read_json(index).get("weight_map")
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


def _copy_tensor(tensor: torch.Tensor, target: WeightTarget, name: str) -> None:
    if tuple(tensor.shape) != target.shape:
        found, expected = list(tensor.shape), list(target.shape)
        raise ModelError(f"{name} has shape {found}, but the config requires {expected}")
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"{name} is {tensor.dtype}: quantized checkpoints are not supported")
    target.tensor.copy_(tensor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {_first_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if the message is
    empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
