# pyright: basic
"""Pack quantized matrices into the panels of the C code; `quantized.h` describes their layout."""

from __future__ import annotations

import torch
from torch import Tensor

from continuo.engine.device.quantization import (
    BLOCK,
    FORMATS,
    Q5_K,
    Q6_K,
    Q8_0,
    SUPERBLOCK,
    QuantizedMatrix,
)

PANEL_ROWS = 16
GROUP = 4
"""Adjacent values of a row that lie side by side in a panel."""


def format_number(matrix: QuantizedMatrix) -> int:
    """Return the number of a matrix's format in the C code, where 0 stands for none."""
    return 1 + FORMATS.index(matrix.format)


def pack(matrix: QuantizedMatrix) -> tuple[Tensor, Tensor]:
    """Return the values and the scales of all panels, [panel, bytes] uint8 each. The number of rows
    must be a multiple of PANEL_ROWS."""
    parts = [(_pack_values(part), _pack_scales(part)) for part in matrix.parts()]
    values, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return values, scales


def _pack_values(matrix: QuantizedMatrix) -> Tensor:
    values = matrix.unpack().values
    if matrix.format is not Q8_0:
        lower = values & 15
        parts = [lower[..., : BLOCK // 2] | lower[..., BLOCK // 2 :] << 4]
        if matrix.format is Q5_K:  # a bit of each of the eight groups in a byte
            upper = (values >> 4).unflatten(-1, (8, GROUP))
            shifts = torch.arange(8, dtype=torch.uint8)[:, None]
            parts.append((upper << shifts).sum(-2, dtype=torch.uint8))
        if matrix.format is Q6_K:  # two bits of each of four groups in a byte
            upper = (values >> 4).unflatten(-1, (2, 4, GROUP))
            shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
            parts.append((upper << shifts).sum(-2, dtype=torch.uint8).flatten(-2))
        values = torch.cat(parts, -1)
    groups = values.contiguous().view(torch.int32)  # [out, block, group]
    return _as_bytes(_split_rows(groups).permute(0, 2, 3, 1))


def _pack_scales(matrix: QuantizedMatrix) -> Tensor:
    blocks = matrix.unpack()
    parts = [_by_row(blocks.super_scales)]
    if blocks.scales is not None:
        own = [_split_rows(blocks.scales.contiguous()).movedim(1, -1)]  # [panel, block, 1 or 2, 16]
        if blocks.least is not None and blocks.super_least is not None:
            parts.append(_by_row(blocks.super_least))
            own.append(_split_rows(blocks.least).movedim(1, -1)[:, :, None])
        rows = torch.cat(own, 2).contiguous().view(torch.uint8)
        parts.append(rows.unflatten(1, (-1, SUPERBLOCK // BLOCK)).flatten(2))
    return torch.cat(parts, -1).flatten(1)


def _split_rows(x: Tensor) -> Tensor:
    """Reshape [out, …] to [panel, row, …]."""
    return x.unflatten(0, (-1, PANEL_ROWS))


def _by_row(halves: Tensor) -> Tensor:
    """Reorder fp16 scales [out, n] to the bytes [panel, n, 2 * row]."""
    return _split_rows(halves).movedim(1, -1).contiguous().view(torch.uint8)


def _as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().flatten(1).view(torch.uint8)
