"""Fingerprint: the digest that identifies a checkpoint's model, tokenizer and chat template.

    sha256( name and content of each configuration, tokenizer and template file, and each shard )

For a large shard or GGUF file, its size, its header and a sample of each tensor replace the
content. A session belongs to one fingerprint: its token ids are valid only with the tokenizer that
made them, and their KV only with the same weights. The fingerprint does not depend on the folder or
the machine that holds the checkpoint.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from continuo.engine.errors import ModelError
from continuo.engine.gguf.container import open_gguf
from continuo.engine.gguf.folder import GGUF_FILE

FINGERPRINT_DIGITS = 16
"""Hexadecimal digits to which the SHA-256 digest is cut. They suffice because few models are
compared and an attacker gains nothing by a collision."""
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
"""Files that determine tokenization and the architecture of the network."""
WHOLE_BYTES_MAX = 64 << 20
"""Maximum size of a shard that is read whole. Larger ones are sampled, one sample per tensor, so
that startup does not wait for gigabytes to be read."""
SAMPLE_BYTES = 4096
"""Bytes read from the middle of each tensor of a large shard."""
HEADER_BYTES_MAX = 100 << 20
"""Maximum size of a shard's header, which is the limit of the safetensors format."""
SHARD_INDEX_FILE, SINGLE_SHARD_FILE = "model.safetensors.index.json", "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Tensor(msgspec.Struct):
    """Entry of the header of a shard: a tensor, or `__metadata__`, which has no offsets."""

    data_offsets: tuple[int, int] = (0, 0)


def compute_fingerprint(folder: str) -> str:
    """Return the fingerprint of a checkpoint folder in the Hugging Face layout. Raises
    ModelError."""
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
    if (folder / GGUF_FILE).exists():
        yield from _iter_gguf(folder / GGUF_FILE)


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
        offsets = (
            tensor.data_offsets
            for tensor in msgspec.json.decode(header, type=dict[str, _Tensor]).values()
        )
        places = [(8 + length + begin, 8 + length + end) for begin, end in offsets]
        yield from _iter_samples(shard, places)


def _iter_gguf(path: Path) -> Iterator[bytes]:
    """Yield what identifies a GGUF file: all of it, or its header and a sample of each tensor."""
    size = path.stat().st_size
    if size <= WHOLE_BYTES_MAX:
        yield path.read_bytes()
        return
    file = open_gguf(path)
    with path.open("rb") as raw:
        yield size.to_bytes(8, "little")
        yield raw.read(file.header_bytes)
        places = [(tensor.begin, tensor.end) for tensor in file.tensors.values()]
        yield from _iter_samples(raw, places)


def _iter_samples(shard: BinaryIO, places: list[tuple[int, int]]) -> Iterator[bytes]:
    """Yield a sample of each tensor, in the order of the file. `places`: begin and end of each."""
    for begin, end in sorted(places):
        shard.seek(begin + max(0, (end - begin - SAMPLE_BYTES) // 2))
        yield shard.read(min(SAMPLE_BYTES, end - begin))
