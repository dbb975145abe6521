"""Checkpoints on this machine: the bundled model, folders in the Hugging Face layout, and GGUF
files."""

import shlex
from collections.abc import Callable
from pathlib import Path

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.errors import ModelError
from continuo.engine.gguf.folder import open_folder, open_text_folder

PROJECTOR_PREFIX = "mmproj"
"""Prefix of GGUF files that have the vision part of a model."""


def find_local_checkpoint(model: str) -> Path | None:
    """Return the folder of `model`: the bundled `demo`, a folder in the Hugging Face layout, or
    that of a GGUF file. Returns None if `model` can only be a hub id. Raises ModelError if a folder
    or file is named that does not exist, or cannot be used."""
    return _find_local(model, open_folder)


def find_local_text(model: str) -> Path | None:
    """Return the folder of `model` as `find_local_checkpoint` does, for its tokenizer and chat
    template alone: a GGUF file may have an architecture or tensors that our engine cannot read."""
    return _find_local(model, open_text_folder)


def _find_local(model: str, open_gguf: Callable[[Path], Path]) -> Path | None:
    if model == BUNDLED_MODEL:
        folder = Path(__file__).parent / "bundled" / BUNDLED_MODEL
    elif Path(model).expanduser().exists() or model.startswith((".", "/", "~")):
        folder = Path(model).expanduser()
    else:
        return None
    if folder.is_file():
        return open_gguf(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    if not (folder / "config.json").exists() and (file := find_gguf_file(folder)) is not None:
        name = shlex.quote(str(file))
        raise ModelError(f"{folder}: has only GGUF files: name one of them, as in --model {name}")
    return folder


def find_gguf_file(folder: Path) -> Path | None:
    """Return a GGUF file of a folder that may be a model. Returns None if it has none."""
    files = (path for path in folder.glob("*.gguf") if not path.name.startswith(PROJECTOR_PREFIX))
    return min(files, default=None)
