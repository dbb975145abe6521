"""The container format GGUF: typed metadata, and the places of the tensors in the file.

    magic, version, counts │ key, type, value … │ name, sizes, type, offset … │ padding │ tensors

Every length is checked against what is left of the file before memory is taken for it. Raises
ModelError, which names the file and the defect, for anything that is not as it should be.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from continuo.engine.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES_MAX = 128 << 20
"""Maximum size of everything before the tensors."""
METADATA_MAX, TENSORS_MAX = 1 << 16, 1 << 16
"""Maximum numbers of keys and of tensors."""
ITEMS_MAX = 1 << 22
"""Maximum length of a list of metadata."""
NAME_BYTES_MAX = 1 << 16
DIMENSIONS_MAX = 4
ALIGNMENT_BYTES, ALIGNMENT_BYTES_MAX = 32, 1 << 16
"""Default and maximum alignment of the tensors."""


@dataclass(frozen=True)
class GgmlType:
    """A type of tensors: blocks of `block` elements in `block_bytes` bytes each."""

    name: str
    block: int
    block_bytes: int


GGML_TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    6: GgmlType("Q5_0", 32, 22),
    8: GgmlType("Q8_0", 32, 34),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    30: GgmlType("BF16", 1, 2),
}
"""Supported types of tensors, by their number."""
OTHER_TYPES = {
    3: "Q4_1",
    7: "Q5_1",
    10: "Q2_K",
    11: "Q3_K",
    20: "IQ4_NL",
    21: "IQ3_S",
    23: "IQ4_XS",
    39: "MXFP4",
}
"""Names of common types that are not supported."""


@dataclass(frozen=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]
    """Sizes, that of the rows last: the reverse of GGUF's order."""
    type: GgmlType
    begin: int
    """Place of the first byte in the file."""

    @property
    def end(self) -> int:
        elements = 1
        for size in self.shape:
            elements *= size
        return self.begin + elements // self.type.block * self.type.block_bytes


@dataclass(frozen=True)
class GgufMetadata:
    """The metadata of a file, whatever its tensors are."""

    path: Path
    metadata: dict[str, Any]
    """Numbers, booleans, strings, and lists of them, by key."""
    metadata_bytes: int
    """Size of the metadata and of what is before them."""


@dataclass(frozen=True)
class GgufFile(GgufMetadata):
    tensors: dict[str, GgufTensor]
    header_bytes: int
    """Size of everything before the padding and the tensors."""

    def read_tensor(self, tensor: GgufTensor) -> bytes:
        """Read the bytes of a small tensor."""
        with self.path.open("rb") as file:
            file.seek(tensor.begin)
            return file.read(tensor.end - tensor.begin)


def open_gguf(path: Path) -> GgufFile:
    """Read metadata and the table of tensors. Raises ModelError."""
    try:
        status = path.stat()
        return _open(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Read the metadata alone, of a file with tensors of any type and place. Raises ModelError."""
    try:
        with _reading(path, path.stat().st_size) as reader:
            return reader.read_metadata()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


@lru_cache(maxsize=1)
def _open(path: Path, size: int, _mtime_ns: int) -> GgufFile:
    with _reading(path, size) as reader:
        return reader.read(size)


@contextmanager
def _reading(path: Path, size: int) -> Generator[_Reader]:
    if size < len(MAGIC):
        raise ModelError(f"{path}: not a GGUF file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield _Reader(path, data, min(size, HEADER_BYTES_MAX))


_SCALARS = {
    **dict(zip(range(8), ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"), strict=True)),
    **dict(zip(range(10, 13), ("<Q", "<q", "<d"), strict=True)),
}
"""Formats of `struct` for the types of numbers and booleans."""
_STRING, _ARRAY = 8, 9
"""Types of metadata values."""


class _Reader:
    """Reads the header of a file, value by value."""

    def __init__(self, path: Path, data: mmap.mmap, limit: int) -> None:
        """`limit`: place at which the header must have ended."""
        self._path, self._data, self._limit, self._at = path, data, limit, 0
        self._tensor_count = 0

    def read_metadata(self) -> GgufMetadata:
        """Read what is before the table of tensors."""
        if self._take(len(MAGIC)) != MAGIC:
            raise ModelError(f"{self._path}: not a GGUF file")
        version = self._number("<I")
        if version not in VERSIONS:
            supported = " and ".join(map(str, VERSIONS))
            raise self._defect(f"GGUF version {version}; versions {supported} are supported")
        self._tensor_count = self._bounded("<Q", TENSORS_MAX, "tensors")
        metadata_count = self._bounded("<Q", METADATA_MAX, "metadata keys")
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self._string(NAME_BYTES_MAX)
            if key in metadata:
                raise self._defect(f"metadata key {key!r} is repeated")
            metadata[key] = self._value(self._number("<I"), key)
        return GgufMetadata(self._path, metadata, self._at)

    def read(self, size: int) -> GgufFile:
        """Read the header of a file of `size` bytes."""
        found = self.read_metadata()
        places = [self._place() for _ in range(self._tensor_count)]
        header_bytes = self._at
        alignment = found.metadata.get("general.alignment", ALIGNMENT_BYTES)
        if not isinstance(alignment, int) or not 1 <= alignment <= ALIGNMENT_BYTES_MAX:
            raise self._defect(f"alignment {alignment!r} is not 1 to {ALIGNMENT_BYTES_MAX}")
        start = -(-header_bytes // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type, offset in places:
            tensor = GgufTensor(name, shape, type, start + offset)
            if name in tensors:
                raise self._defect(f"tensor {name} is repeated")
            if tensor.end > size:
                raise self._defect(f"tensor {name} ends at byte {tensor.end:,} of {size:,}")
            tensors[name] = tensor
        return GgufFile(self._path, found.metadata, found.metadata_bytes, tensors, header_bytes)

    def _place(self) -> tuple[str, tuple[int, ...], GgmlType, int]:
        """Read an entry of the table of tensors: name, shape, type and offset."""
        name = self._string(NAME_BYTES_MAX)
        dimensions = self._bounded("<I", DIMENSIONS_MAX, f"dimensions of tensor {name}")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        number, offset = self._number("<I"), self._number("<Q")
        if number not in GGML_TYPES:
            kind = OTHER_TYPES.get(number, f"of type {number}")
            supported = ", ".join(each.name for each in GGML_TYPES.values())
            raise self._defect(f"tensor {name} is {kind}; supported are {supported}")
        type = GGML_TYPES[number]
        has_blocks = type.block == 1 or (len(sizes) == 2 and sizes[0] % type.block == 0)
        if not sizes or not all(sizes) or not has_blocks:
            raise self._defect(f"tensor {name} has sizes {sizes}, which {type.name} cannot have")
        return name, tuple(reversed(sizes)), type, offset

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string(self._limit)
        if kind != _ARRAY:
            raise self._defect(f"metadata {key} is of unknown type {kind}")
        item = self._number("<I")
        if item == _STRING:
            count = self._bounded("<Q", ITEMS_MAX, f"items of {key}")
            return [self._string(self._limit) for _ in range(count)]
        if item not in _SCALARS:
            raise self._defect(f"metadata {key} is an array of type {item}")
        code = _SCALARS[item]
        count = self._bounded("<Q", ITEMS_MAX, f"items of {key}")
        return list(struct.unpack(f"<{count}{code[1]}", self._take(count * struct.calcsize(code))))

    def _string(self, bytes_max: int) -> str:
        size = self._number("<Q")
        if size > bytes_max:
            raise self._defect(f"a string of {size:,} bytes at byte {self._at:,}")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise self._defect(f"a string at byte {self._at:,} is not UTF-8") from None

    def _bounded(self, code: str, maximum: int, what: str) -> int:
        count = self._number(code)
        if count > maximum:
            raise self._defect(f"{count:,} {what}; the limit is {maximum:,}")
        return count

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _take(self, size: int) -> bytes:
        if size > self._limit - self._at:
            raise self._defect(f"the file ends, or its header has no end, at byte {self._at:,}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _defect(self, reason: str) -> ModelError:
        return ModelError(f"{self._path}: {reason}")
