# pyright: basic
"""RMS norm in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from continuo.engine.device.model import WeightTarget


class RMSNorm:
    """RMS norm over the last dimension, computed in fp32 inside torch's kernel.

    The weight may have several rows, [n, size], one for each vector of x [..., n, size].
    """

    def __init__(
        self, size: int, eps: float, like: Tensor, *, is_centered: bool = False, rows: int = 0
    ) -> None:
        """Args:
        size: length of the last dimension, over which the mean is taken.
        eps: added to the mean square, so that a vector of zeros is not divided by 0.
        like: a tensor whose dtype and device the weight gets.
        is_centered: whether the checkpoint stores the weight less 1; the weight is then in fp32, as
            the sum must be.
        rows: n of a weight with several rows; 0: one vector for all of x.
        """
        dtype = torch.float32 if is_centered else like.dtype
        self.weight = like.new_empty(*([rows] if rows else []), size, dtype=dtype)
        self.shape, self.eps, self.is_centered = (size,), eps, is_centered
        self.kernel_weight = None if is_centered or rows else self.weight

    def __call__(self, x: Tensor) -> Tensor:
        if self.kernel_weight is not None:
            return F.rms_norm(x, self.shape, self.kernel_weight, self.eps)
        if self.is_centered:
            return (F.rms_norm(x.float(), self.shape, None, self.eps) * self.weight).to(x.dtype)
        return F.rms_norm(x, self.shape, None, self.eps) * self.weight

    def target(self, rows: slice | None = None) -> WeightTarget:
        """Return the destination of a checkpoint vector: the whole weight, or these rows of it."""
        tensor = self.weight if rows is None else self.weight[rows]
        return WeightTarget(tensor, self.shape, _add_one if self.is_centered else None)


def _add_one(weight: Tensor) -> Tensor:
    return weight.float() + 1.0
