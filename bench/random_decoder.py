"""Runners of a decoder with random weights that needs no checkpoint, and batches for them."""

from array import array
from typing import NamedTuple

import torch
from transformers import LlamaConfig

from continuo.engine.architectures.shapes import (
    AttentionShape,
    DecoderShape,
    LayerShape,
    MlpShape,
)
from continuo.engine.batch import Batch, BatchRow, Geometry, SampleParams
from continuo.engine.device.attention.backend import AttentionBackend
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.models.decoder import Decoder, empty_tensor
from continuo.engine.device.models.operations import Operations
from continuo.engine.device.runner import TorchRunner

PAGE_SIZE = 16
CONTEXT_MAX = 33_000
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
WEIGHT_STDDEV = 0.02


class Widths(NamedTuple):
    """Sizes of a decoder besides its heads, which are those of a model of eight billion
    parameters."""

    layers: int
    hidden: int
    intermediate: int
    vocab_size: int


NARROW = Widths(32, 16, 64, 512)
"""Nearly all of a step is the work of the host."""
EIGHT_BILLION = Widths(32, 4096, 14_336, 128_256)
"""The sizes of Llama 3 8B."""


def build_runner(
    widths: Widths,
    operations: Operations,
    attention: AttentionBackend,
    device: torch.device,
    pages: int = -(-CONTEXT_MAX // PAGE_SIZE),
) -> TorchRunner:
    """Build a runner of a decoder in bfloat16, with `pages` pages of KV."""
    heads = AttentionShape(HEADS, KV_HEADS, HEAD_DIM, scale=HEAD_DIM**-0.5)
    layer = LayerShape(heads, MlpShape(widths.intermediate, "silu"))
    shape = DecoderShape(widths.vocab_size, widths.hidden, 1e-5, (layer,) * widths.layers)
    like = empty_tensor(torch.bfloat16, device)
    config = LlamaConfig()
    config.standardize_rope_params()
    decoder = Decoder(shape, config, CONTEXT_MAX, like, operations)
    for target in decoder.weight_targets(set()).values():
        target.tensor.normal_(0.0, WEIGHT_STDDEV)
    pool = KVPool(decoder.memory, pages, PAGE_SIZE, like)
    geometry = Geometry(pages, PAGE_SIZE, CONTEXT_MAX, widths.vocab_size, 8192, steps_ahead=1)
    return TorchRunner(decoder, pool, attention, geometry, device)


def make_batch(lengths: list[tuple[int, int]], sample: SampleParams, pages: int) -> Batch:
    """Make a batch of rows that have (tokens in KV, new tokens). Each has pages of its own, as far
    as `pages` are enough; then pages are shared."""
    rows: list[BatchRow] = []
    first = 0
    for start, count in lengths:
        needed = -(-(start + count) // PAGE_SIZE)
        rows.append(
            BatchRow(
                ids=array("i", [7] * count),
                feed_row=-1,
                start=start,
                pages=array("i", [(first + n) % pages for n in range(needed)]),
                sample=sample,
            )
        )
        first += needed
    return Batch(0, rows)
