"""A GGUF file as a checkpoint folder: its metadata as the files that other checkpoints have, and a
link to the file, which has the tensors. A folder for the text alone has no link."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from continuo.engine.errors import ModelError
from continuo.engine.gguf.architectures import Metadata, build_config
from continuo.engine.gguf.container import open_gguf, read_gguf_metadata
from continuo.engine.gguf.tokenizer import (
    TokenizerMetadata,
    build_tokenizer,
    build_tokenizer_config,
)

CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "gguf"
CONFIG_FILE = "config.json"
GGUF_FILE = "model.gguf"
"""Name of the link to the file."""
FOLDER_VERSION = 2
"""Incremented when other files are written for the same metadata."""


def open_folder(path: Path) -> Path:
    """Return the checkpoint folder of a GGUF file, in the cache of this user; write it unless it
    is there. Raises ModelError."""
    file = open_gguf(path)
    folder = _find_place(path, file.header_bytes, f"{FOLDER_VERSION} {path.resolve()}")
    if (folder / GGUF_FILE).exists():
        return folder
    metadata = TokenizerMetadata(file)
    config = build_config(file)
    if len(metadata.tokens) > config["vocab_size"]:
        raise ModelError(
            f"{path}: {len(metadata.tokens):,} tokens, but an embedding of {config['vocab_size']:,}"
        )
    _write(folder, _build_files(metadata, config), path, GGUF_FILE)
    return folder


def open_text_folder(path: Path) -> Path:
    """Return the folder of a GGUF file for its tokenizer and chat template: that of `open_folder`
    where our engine can read the file, else one without weights, whose config has the name of the
    architecture alone. Raises ModelError if the tokenizer cannot be read either."""
    with contextlib.suppress(ModelError):
        return open_folder(path)
    file = read_gguf_metadata(path)
    folder = _find_place(path, file.metadata_bytes, f"text {FOLDER_VERSION}")
    if (folder / CONFIG_FILE).exists():
        return folder
    name, metadata = Metadata(file).architecture, TokenizerMetadata(file)
    config = {"architectures": [name], "model_type": name, "vocab_size": len(metadata.tokens)}
    _write(folder, _build_files(metadata, config), path, None)
    return folder


def _find_place(path: Path, header_bytes: int, kind: str) -> Path:
    """Return where the folder of a file is, by the beginning of the file and the kind of folder."""
    with path.open("rb") as raw:
        digest = sha256(f"{kind}\0".encode() + raw.read(header_bytes))
    return CACHE_FOLDER / digest.hexdigest()[:24]


def _build_files(metadata: TokenizerMetadata, config: dict[str, Any]) -> dict[str, str]:
    """Return the content of each file of a folder. Raises ModelError."""
    files: dict[str, str] = {
        CONFIG_FILE: _to_json(config),
        "generation_config.json": _to_json({"eos_token_id": metadata.stop_ids()}),
        "tokenizer.json": _to_json(build_tokenizer(metadata)),
        "tokenizer_config.json": _to_json(build_tokenizer_config(metadata)),
    }
    if metadata.chat_template:
        files["chat_template.jinja"] = metadata.chat_template
    return files


def _write(folder: Path, files: dict[str, str], path: Path, link: str | None) -> None:
    """Write the folder of the GGUF file `path`. `link`: name of a link to it. Raises ModelError."""
    try:
        _write_atomically(folder, files, path.resolve(), link)
    except OSError as error:
        raise ModelError(
            f"{folder}: the config and tokenizer of {path.name} cannot be written: "
            f"{error.strerror}; XDG_CACHE_HOME moves this folder"
        ) from None


def _write_atomically(folder: Path, files: dict[str, str], target: Path, link: str | None) -> None:
    """Write a folder that another process may write at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        new.chmod(0o755)
        for name, text in files.items():
            (new / name).write_text(text, "utf-8")
        if link is not None:
            (new / link).symlink_to(target)
        if folder.exists():
            shutil.rmtree(folder)  # its link leads nowhere
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not (folder / (link or CONFIG_FILE)).exists():
            raise


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
