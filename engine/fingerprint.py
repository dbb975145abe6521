"""Fingerprint: which model, tokenizer and chat template a session's ids are of. Knows no torch.

    sha256( name, size, content  of  config, tokenizer, template │ header, sample  of  each shard )

Ids mean something only with the tokenizer that made them, and their KV and what follows them only
with the weights. A checkpoint in another folder, or copied to another machine, is the same one.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from continuo.engine.errors import ModelError

FINGERPRINT_DIGITS = 16
"""Hexadecimal, of the digest: there are few models, and none is made to collide with another."""
IDENTITY_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that decide how text becomes ids, and which network the ids go through."""
WHOLE_BYTES_MAX = 64 << 20
"""A shard of at most this size is read whole; of a larger one, a sample of each tensor: a start
must not wait for gigabytes."""
SAMPLE_BYTES = 4096
"""Bytes sampled from the middle of each tensor of a large shard."""
HEADER_BYTES_MAX = 100 << 20
"""The limit of the safetensors format."""
SHARD_INDEX_FILE, SINGLE_SHARD_FILE = "model.safetensors.index.json", "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Tensor(msgspec.Struct):
    """A tensor in the header of a shard. The metadata entry, which stands there too, has no
    offsets."""

    data_offsets: tuple[int, int] = (0, 0)


def compute_fingerprint(folder: str) -> str:
    """The digest of a checkpoint folder in the Hugging Face layout. Raises ModelError."""
    path, digest = Path(folder), hashlib.sha256()
    try:
        for part in _iter_parts(path):
            digest.update(len(part).to_bytes(8, "little") + part)
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{folder}: cannot be identified: {error}") from None
    return digest.hexdigest()[:FINGERPRINT_DIGITS]


def _iter_parts(folder: Path) -> Iterator[bytes]:
    for name in IDENTITY_FILES:
        file = folder / name
        if file.exists():
            yield name.encode()
            yield file.read_bytes()
    for name in _list_shards(folder):
        yield name.encode()
        yield from _iter_shard(folder / name)


def _list_shards(folder: Path) -> list[str]:
    index = folder / SHARD_INDEX_FILE
    if index.exists():
        found = msgspec.json.decode(index.read_bytes(), type=_Index)
        return sorted(set(found.weight_map.values()))
    return [SINGLE_SHARD_FILE] if (folder / SINGLE_SHARD_FILE).exists() else []


def _iter_shard(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    if size <= WHOLE_BYTES_MAX:
        yield file.read_bytes()
        return
    with file.open("rb") as shard:
        (length,) = struct.unpack("<Q", shard.read(8))
        if length > HEADER_BYTES_MAX:
            raise ValueError(f"{file.name} has a header of {length} bytes")
        header = shard.read(length)
        yield size.to_bytes(8, "little")
        yield header
        tensors = msgspec.json.decode(header, type=dict[str, _Tensor])
        yield from _iter_samples(shard, 8 + length, tensors)


def _iter_samples(shard: BinaryIO, start: int, tensors: dict[str, _Tensor]) -> Iterator[bytes]:
    """Yield a sample of each tensor, in the order of the file."""
    for begin, end in sorted(tensor.data_offsets for tensor in tensors.values()):
        shard.seek(start + begin + max(0, (end - begin - SAMPLE_BYTES) // 2))
        yield shard.read(min(SAMPLE_BYTES, end - begin))
