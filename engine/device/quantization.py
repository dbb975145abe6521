# pyright: basic
"""Matrices quantized in blocks: the formats of GGUF that are read, and those made at load.

    Q8_0   32 weights: scale fp16, 32 int8                          --quantization int8
    Q4_0   32 weights: scale fp16, 32 of 4 bits less 8              --quantization int4
    Q4_K   256 weights: d, dmin fp16; scale and min of 6 bits for each 32; 256 of 4 bits
    Q5_K   as Q4_K, with 256 of 5 bits: their upper bits, then the others
    Q6_K   256 weights: 256 of 6 bits less 32; int8 scale for each 16; d fp16
    Q5_0   32 weights: scale fp16, 32 of 5 bits less 16: read as the Q8_0 of the same values

A matrix is kept as the bytes of its file until it is packed for the C code or dequantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from continuo.engine.gguf.container import GGML_TYPES, GgmlType

PART_ELEMENTS = 1 << 20
"""Elements that are converted at once. Temporary copies of so many are reused by the heap."""
BLOCK = 32
"""Weights of a row for which the C code has a scale; a Q6_K has two."""
SUPERBLOCK = 256
"""Weights of a row in a block of Q4_K, Q5_K or Q6_K."""
Q8_0, Q4_0, Q4_K, Q5_K, Q6_K = (GGML_TYPES[number] for number in (8, 2, 12, 13, 14))
Q5_0 = GGML_TYPES[6]
FORMATS = (Q8_0, Q4_0, Q4_K, Q5_K, Q6_K)
MADE_FORMATS = {"int8": Q8_0, "int4": Q4_0}
"""Formats of `EngineConfig.quantization`."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The numbers of a quantized matrix, by blocks of 32: weight = value * scale - least, with
    values [out, block, 32] uint8, and scales and least in fp32 or integers that are exact in it."""

    values: Tensor
    zero: int
    """Value that stands for a weight of 0; it is subtracted from the others."""
    super_scales: Tensor
    """[out, block or superblock] fp16."""
    scales: Tensor | None = None
    """[out, block, 1 or 2] integers; they are multiplied by the super scales. None: all are 1."""
    super_least: Tensor | None = None
    """[out, superblock] fp16."""
    least: Tensor | None = None
    """[out, block] uint8; multiplied by `super_least`, they are subtracted."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A matrix [out, in] in blocks along its rows. `data`: [out, bytes of a row] uint8."""

    format: GgmlType
    data: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        out, row_bytes = self.data.shape
        return out, row_bytes // self.format.block_bytes * self.format.block

    def unpack(self) -> Blocks:
        """Separate the values and scales."""
        out = len(self.data)
        raw = self.data.view(out, -1, self.format.block_bytes)
        if self.format is Q8_0:
            values = raw[..., 2:] ^ 0x80
            return Blocks(values, 128, _halves(raw[..., :2]))
        if self.format is Q4_0:
            return Blocks(_nibbles(raw[..., 2:]), 8, _halves(raw[..., :2]))
        if self.format in (Q4_K, Q5_K):
            scales, least = _six_bit_pairs(raw[..., 4:16])
            values = _nibbles(raw[..., -128:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32))
            if self.format is Q5_K:
                shifts = torch.arange(8, dtype=torch.uint8).view(4, 2, 1)
                values = values | (raw[..., None, None, 16:48] >> shifts & 1) << 4
            return Blocks(
                values.reshape(out, -1, BLOCK),
                0,
                _halves(raw[..., :2]),
                scales.reshape(out, -1, 1),
                _halves(raw[..., 2:4]),
                least.reshape(out, -1),
            )
        # Q6_K: two halves of 128 weights, each four runs of 32.
        lower = raw[..., :128].unflatten(-1, (2, 2, 32))
        lower = torch.cat((lower & 15, lower >> 4), -2)
        shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
        upper = raw[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3
        values = (lower | upper << 4).reshape(out, -1, BLOCK)
        scales = raw[..., 192:208].contiguous().view(torch.int8).reshape(out, -1, 2)
        return Blocks(values, 32, _halves(raw[..., 208:]), scales)

    def parts(self) -> Iterator[QuantizedMatrix]:
        """Yield the rows in parts, so that temporary copies of them are small."""
        for rows in self.data.split(rows_per_part(self.shape[1])):
            yield QuantizedMatrix(self.format, rows)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix [out, in]."""
        matrix = torch.empty(self.shape, dtype=dtype)
        for part, rows in zip(
            self.parts(), matrix.split(rows_per_part(self.shape[1])), strict=True
        ):
            rows.copy_(part._dequantize())  # noqa: SLF001 - of its own class
        return matrix

    def _dequantize(self) -> Tensor:
        """Return the matrix in fp32, all at once."""
        blocks = self.unpack()
        out, count = blocks.values.shape[:2]
        per_super = count // blocks.super_scales.shape[1]
        scale = blocks.super_scales.float().repeat_interleave(per_super, 1)[..., None]
        if blocks.scales is not None:
            scale = scale * blocks.scales
            scale = scale.repeat_interleave(BLOCK // scale.shape[-1], -1)
        weight = scale * (blocks.values.to(torch.int16) - blocks.zero)
        if blocks.least is not None and blocks.super_least is not None:
            least = blocks.super_least.float().repeat_interleave(per_super, 1) * blocks.least
            weight -= least[..., None]
        return weight.reshape(out, -1)


def rows_per_part(size_in: int) -> int:
    """Return the number of rows of a matrix that are converted at once, a multiple of 16."""
    return max(1, PART_ELEMENTS // (16 * size_in)) * 16


def from_gguf(type: GgmlType, data: Tensor) -> QuantizedMatrix:
    """Return the matrix [out, in] whose rows have the bytes `data` [out, bytes]."""
    if type is not Q5_0:
        return QuantizedMatrix(type, data)
    raw = data.view(len(data), -1, type.block_bytes)
    shifts = torch.arange(8, dtype=torch.uint8)
    top = (raw[..., 2:6, None] >> shifts & 1).flatten(-2)  # [out, block, 32]
    values = (_nibbles(raw[..., 6:]) | top << 4).view(torch.int8) - 16
    return QuantizedMatrix(Q8_0, torch.cat((raw[..., :2], values.view(torch.uint8)), -1).flatten(1))


def is_quantizable(weight: Tensor) -> bool:
    """Return whether the rows of a matrix are whole blocks."""
    return weight.dim() == 2 and weight.shape[1] % BLOCK == 0


def quantize(weight: Tensor, target: GgmlType) -> QuantizedMatrix:
    """Quantize a matrix to Q8_0 or Q4_0, as llama.cpp does: a block's largest magnitude is
    represented exactly, but for the rounding of its scale."""
    parts = [_quantize(rows, target) for rows in weight.split(rows_per_part(weight.shape[1]))]
    return QuantizedMatrix(target, torch.cat(parts))


def _quantize(weight: Tensor, target: GgmlType) -> Tensor:
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    places = blocks.abs().argmax(-1, keepdim=True)
    largest = blocks.gather(-1, places)
    scale = largest.abs() / 127 if target is Q8_0 else largest / -8
    inverse = torch.where(scale == 0, 0, 1 / scale)
    if target is Q8_0:
        values = (blocks * inverse).round_().to(torch.int8).view(torch.uint8)
    else:
        values = (blocks * inverse + 8.5).to(torch.uint8).clamp_(max=15)
        values = values[..., :16] | values[..., 16:] << 4
    halves = scale.to(torch.float16).view(torch.uint8)
    return torch.cat((halves, values), -1).flatten(1)


def _halves(raw: Tensor) -> Tensor:
    """Read [out, n, 2] bytes as fp16, [out, n]."""
    return raw.contiguous().view(torch.float16)[..., 0]


def _nibbles(raw: Tensor) -> Tensor:
    """Separate the lower and the upper halves of n bytes, as 2n numbers in that order."""
    return torch.cat((raw & 15, raw >> 4), -1)


def _six_bit_pairs(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Read eight scales and eight minima of six bits each from 12 bytes.

    The lower six bits of the first eight bytes are four scales and four minima. Of the
    other scales and minima, the last four bytes have the lower bits, and the top two bits of the
    first eight bytes the upper bits.
    """
    first, second, third = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), -1)
    return scales, torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
