"""Checkpoints on this machine: the bundled model, folders in the Hugging Face layout, and GGUF
files."""

from pathlib import Path

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.errors import ModelError
from continuo.engine.gguf.folder import open_folder


def find_local_checkpoint(model: str) -> Path | None:
    """Return the folder of `model`: the bundled `demo`, a folder in the Hugging Face layout, or
    that of a GGUF file. Returns None if `model` can only be a hub id. Raises ModelError if a folder
    or file is named that does not exist, or cannot be used."""
    if model == BUNDLED_MODEL:
        folder = Path(__file__).parent / "bundled" / BUNDLED_MODEL
    elif Path(model).expanduser().exists() or model.startswith((".", "/", "~")):
        folder = Path(model).expanduser()
    else:
        return None
    if folder.is_file():
        return open_folder(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    return folder
