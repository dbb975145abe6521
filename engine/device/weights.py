# pyright: basic
"""A checkpoint: where it is, what its config says, and its tensors poured into our parameters.

Every way in which a checkpoint can be broken is one line of ModelError that says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.device.model import WeightTarget
from continuo.engine.errors import ModelError

ProgressCallback = Callable[[str, float], None]
"""(what is being done, how far it is in [0, 1])."""

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
FETCH_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""The files of a hub repository that are fetched."""


def resolve(model: str, revision: str | None, progress: ProgressCallback) -> Path:
    """The folder of `demo`, of a folder in the Hugging Face layout, or of a hub id, fetched into
    the ordinary Hugging Face cache where it is not there yet."""
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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    wanted: dict[str, Any] = {"revision": revision, "allow_patterns": FETCH_PATTERNS}
    bar = _reporting_bar(model, progress)
    try:
        return Path(snapshot_download(model, tqdm_class=bar, **wanted))
    except HFValidationError as error:
        raise ModelError(f"{model}: neither a folder nor a hub id") from error
    except GatedRepoError as error:
        raise ModelError(f"{model}: the hub asks for a login and its licence accepted") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{model}: the hub has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{model}: no such folder, and the hub has no such model") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(f"{model}: not in the local cache, and the hub does not answer") from error
    except Exception as error:
        raise ModelError(f"{model}: download failed: {_first_line(error)}") from error


def _reporting_bar(model: str, progress: ProgressCallback) -> type:
    """A tqdm class that draws nothing and reports the share of bytes (or files) fetched."""
    from tqdm.auto import tqdm

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
    """The transformers config of a checkpoint folder."""
    path = folder / "config.json"
    _read_json(path)
    try:
        found = AutoConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelError(f"{path}: {_first_line(error)}") from error
    if getattr(found, "quantization_config", None):
        raise ModelError(f"{folder}: quantized checkpoints are not supported")
    return found


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint's files say of themselves. Their first tensor stands for all dtypes."""

    dtype: torch.dtype
    parameter_count: int


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
    """Pour the tensors of a checkpoint into their slots, shard by shard, converting each on the
    way; at no time is more than one checkpoint tensor in memory beside the parameters."""
    missing = dict(targets)
    for path, names in _find_shards(folder, targets):
        try:
            with safe_open(path, framework="pt", device="cpu") as shard:
                present = set(shard.keys())
                for name in sorted(present if names is None else names):
                    slot = missing.pop(name, None) if name in present else None
                    if slot is None:
                        continue
                    _copy_tensor(shard.get_tensor(name), slot, f"{path.name}: {name}")
                    progress("loading weights", 1 - len(missing) / len(targets))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: cannot be read: {_first_line(error)}") from error
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelError(f"{folder}: tensor {min(missing)} is missing{more}")


def _find_shards(folder: Path, names: Iterable[str] | None) -> list[tuple[Path, set[str] | None]]:
    """The files that hold the tensors `names` (None: all), each found to exist, and what is
    wanted from each (None: whatever it has)."""
    index = folder / INDEX_FILE
    if not index.exists():
        if not (folder / SINGLE_FILE).exists():
            raise ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there")
        return [(folder / SINGLE_FILE, None)]
    places = _read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{index}: has no weight_map")
    wanted: dict[str, set[str]] = {}
    for name in places if names is None else names:
        if name in places:
            wanted.setdefault(places[name], set()).add(name)
    for file in sorted(wanted):
        if not (folder / file).exists():
            raise ModelError(f"{folder}: shard {file} is missing")
    return [(folder / file, found) for file, found in sorted(wanted.items())]


def _copy_tensor(tensor: torch.Tensor, target: WeightTarget, name: str) -> None:
    if tuple(tensor.shape) != target.shape:
        found, wanted = list(tensor.shape), list(target.shape)
        raise ModelError(f"{name} has shape {found}, the config asks for {wanted}")
    if not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ModelError(f"{name} is {tensor.dtype}: quantized checkpoints are not supported")
    target.tensor.copy_(tensor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {_first_line(error)}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: not a JSON object")
    return found


def _first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
