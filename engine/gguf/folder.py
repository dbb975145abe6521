"""A GGUF file as a checkpoint folder: its metadata as the files that other checkpoints have, and a
link to the file, which has the tensors."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from continuo.engine.errors import ModelError
from continuo.engine.gguf.architectures import build_config
from continuo.engine.gguf.container import open_gguf
from continuo.engine.gguf.tokenizer import (
    TokenizerMetadata,
    build_tokenizer,
    build_tokenizer_config,
)

CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "gguf"
GGUF_FILE = "model.gguf"
"""Name of the link to the file."""
FOLDER_VERSION = 1
"""Incremented when other files are written for the same metadata."""


def open_folder(path: Path) -> Path:
    """Return the checkpoint folder of a GGUF file, in the cache of this user; write it unless it
    is there. Raises ModelError."""
    file = open_gguf(path)
    with path.open("rb") as raw:
        header = raw.read(file.header_bytes)
    target = path.resolve()
    digest = sha256(f"{FOLDER_VERSION} {target}\0".encode() + header)
    folder = CACHE_FOLDER / digest.hexdigest()[:24]
    if (folder / GGUF_FILE).exists():
        return folder
    metadata = TokenizerMetadata(file)
    config = build_config(file)
    if len(metadata.tokens) > config["vocab_size"]:
        raise ModelError(
            f"{path}: {len(metadata.tokens):,} tokens, but an embedding of {config['vocab_size']:,}"
        )
    files: dict[str, str] = {
        "config.json": _to_json(config),
        "generation_config.json": _to_json({"eos_token_id": metadata.stop_ids()}),
        "tokenizer.json": _to_json(build_tokenizer(metadata)),
        "tokenizer_config.json": _to_json(build_tokenizer_config(metadata)),
    }
    if metadata.chat_template:
        files["chat_template.jinja"] = metadata.chat_template
    try:
        _write(folder, files, target)
    except OSError as error:
        raise ModelError(
            f"{folder}: the config and tokenizer of {path.name} cannot be written: "
            f"{error.strerror}; XDG_CACHE_HOME moves this folder"
        ) from None
    return folder


def _write(folder: Path, files: dict[str, str], target: Path) -> None:
    """Write a folder, atomically: another process may write the same one at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        new.chmod(0o755)
        for name, text in files.items():
            (new / name).write_text(text, "utf-8")
        (new / GGUF_FILE).symlink_to(target)
        if folder.exists():
            shutil.rmtree(folder)  # its link leads nowhere
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not (folder / GGUF_FILE).exists():
            raise


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
