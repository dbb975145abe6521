# pyright: basic
"""Downloads of checkpoints from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from continuo.engine.architectures.config import find_quantization, read_json
from continuo.engine.architectures.known import find_refusal
from continuo.engine.architectures.refusals import quantized_checkpoint, unsupported_architecture
from continuo.engine.byte_units import format_bytes
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.errors import ModelError, first_line
from continuo.engine.local_checkpoint import PROJECTOR_PREFIX

FETCH_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Glob patterns of the files of a hub repository that are downloaded."""


def fetch(model: str, revision: str | None, progress: Callable[[str, float], None]) -> Path:
    """Return the folder of a hub repository in the usual Hugging Face cache; downloads what is not
    there yet. Raises ModelError."""
    options: dict[str, Any] = {"revision": revision, "allow_patterns": FETCH_PATTERNS}
    try:
        bar = _reporting_bar(model, _count_download_bytes(model, options), progress)
        _check_config(model, revision)
        return Path(huggingface_hub.snapshot_download(model, tqdm_class=bar, **options))
    except HFValidationError as error:
        raise ModelError(f"{model}: neither a folder nor a hub id") from error
    except GatedRepoError as error:
        raise ModelError(
            f"{model}: needs an account that has accepted its licence: accept it at "
            f"{constants.ENDPOINT}/{model}, and set HF_TOKEN to a token of this account"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{model}: the hub has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{model}: no such folder, and the hub has no such model, or has it as a private one, "
            f"which needs HF_TOKEN"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model}: not in the local cache, and the hub is unreachable; the bundled model "
            f"({BUNDLED_MODEL}) needs no network"
        ) from error
    except ModelError:
        raise
    except Exception as error:
        if (status := _http_status(error)) in (401, 403):
            raise ModelError(
                f"{model}: the hub refused the token ({status}): set HF_TOKEN to a valid one"
            ) from error
        raise ModelError(f"{model}: download failed: {first_line(error)}") from error


def _count_download_bytes(model: str, options: dict[str, Any]) -> int | None:
    """Return the size of what is downloaded of a hub repository. Returns None if its weights are in
    the cache, and if the hub is unreachable. Raises what the download would raise, and
    ModelError if the repository has no weights that can be read."""
    cached = try_to_load_from_cache(model, "config.json", revision=options["revision"])
    if isinstance(cached, str) and any(Path(cached).parent.glob("*.safetensors")):
        return None
    silent = _reporting_bar(model, None, lambda _what, _fraction: None)
    try:
        files = huggingface_hub.snapshot_download(model, dry_run=True, tqdm_class=silent, **options)
    except DryRunError:
        return None
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise _without_safetensors(model, options["revision"])
    return sum(file.file_size or 0 for file in files if file.will_download)


def _check_config(model: str, revision: str | None) -> None:
    """Download config.json and raise ModelError if it is that of a model that is refused, so that
    its weights are not downloaded first."""
    silent = _reporting_bar(model, None, lambda _what, _fraction: None)
    folder = huggingface_hub.snapshot_download(
        model, revision=revision, allow_patterns="config.json", tqdm_class=silent
    )
    path = Path(folder, "config.json")
    if not path.exists():
        raise ModelError(f"{model}: config.json is missing")
    values = read_json(path)
    if (method := find_quantization(values)) is not None:
        raise quantized_checkpoint(model, method)
    match values.get("architectures"):
        case [str(architecture), *_] if (reason := find_refusal(architecture)) is not None:
            raise unsupported_architecture(model, architecture, reason)
        case _:
            pass


def _without_safetensors(model: str, revision: str | None) -> ModelError:
    """Create the error of a hub repository without weights that can be read."""
    names = sorted(HfApi(constants.ENDPOINT).list_repo_files(model, revision=revision))
    ggufs = [name for name in names if name.endswith(".gguf")]
    files = [name for name in ggufs if not name.startswith(PROJECTOR_PREFIX)]
    if not files:
        return ModelError(
            f"{model}: has no weights in safetensors: use a checkpoint that has them, or a GGUF "
            f"file"
        )
    url = f"{constants.ENDPOINT}/{model}/resolve/{revision or 'main'}/{files[0]}"
    return ModelError(
        f"{model}: has GGUF files and no safetensors: download one, such as {url}, and name it, as "
        f"in --model ./{Path(files[0]).name}"
    )


def _http_status(error: Exception) -> int | None:
    response = error.response if isinstance(error, HfHubHTTPError) else None
    return None if response is None else response.status_code


def _reporting_bar(
    model: str, size_bytes: int | None, progress: Callable[[str, float], None]
) -> type:
    """Create a tqdm class that draws nothing and reports the share of `size_bytes` fetched. The
    share of the files is reported if the size is not known."""
    size = "" if size_bytes is None else f" ({format_bytes(size_bytes)})"

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": False, "gui": True}))

        def display(self, *args: Any, **kwargs: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> bool | None:
            done = super().update(n)
            total = size_bytes if self.unit == "B" else self.total
            if total and (size_bytes is None or self.unit == "B"):
                progress(f"fetching {model}{size}", min(1.0, self.n / total))
            return done

    return Bar
