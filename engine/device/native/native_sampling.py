# pyright: basic
"""The layout of sampling parameters in the memory of the C code, and of the log-probabilities that
it reports. The structs mirror those of draw.h field by field."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import Structure, addressof, c_double, c_int64, c_void_p
from dataclasses import dataclass, field
from typing import Any

from continuo.engine.batch import Logprobs, RowResult, SampleParams, TokenCounts, TokenMask
from continuo.engine.device.native.native_model import define_struct, fields_of_type
from continuo.engine.device.sampling import describe_failure, is_plain_greedy

_TokenCounts = define_struct(
    "TokenCounts", ("count", c_int64), *fields_of_type("ids occurrences", c_void_p)
)
_Sampling = define_struct(
    "Sampling",
    *fields_of_type("temperature top_p min_p uniform", c_double),
    *fields_of_type("repetition_penalty presence_penalty frequency_penalty", c_double),
    ("top_k", c_int64),
    *fields_of_type("seen output", _TokenCounts),
    ("bias_count", c_int64),
    *fields_of_type("bias_ids biases mask", c_void_p),
    ("top_count", c_int64),
    *fields_of_type("logprobs top_ids", c_void_p),
)

_NO_COUNTS = _TokenCounts()


@dataclass(slots=True)
class PackedSampling:
    """How the ids of S rows are drawn, in the memory layout of the C code. The counts of penalized
    ids are copied, because they change while a step runs."""

    samples: Sequence[SampleParams]
    addresses: array[int] = field(default_factory=lambda: array("q"))
    """[S] the struct of each row; 0 for a row that is plain greedy."""
    logprobs: list[tuple[array[float], array[int]] | None] = field(default_factory=list)
    """[S] set by the C code for the rows that request log-probabilities: that of the drawn id and
    those of the likeliest ids, and the likeliest ids."""
    _keepalive: list[Any] = field(default_factory=list)

    @classmethod
    def pack(cls, samples: Sequence[SampleParams], vocab_size: int) -> PackedSampling:
        """Pack the parameters of S rows. Raises IndexError for a logit bias or a mask that does not
        fit the vocabulary."""
        packed = cls(samples)
        for sample in samples:
            logprobs = _make_logprobs(sample.sampling.logprobs, vocab_size)
            packed.logprobs.append(logprobs)
            address = 0
            if not is_plain_greedy(sample):
                struct = packed._build(sample, vocab_size, logprobs)
                packed._keepalive.append(struct)
                address = addressof(struct)
            packed.addresses.append(address)
        return packed

    def _build(
        self,
        sample: SampleParams,
        vocab_size: int,
        logprobs: tuple[array[float], array[int]] | None,
    ) -> Structure:
        sampling, penalized = sample.sampling, sample.penalized
        values, top_ids = logprobs or (None, None)
        return _Sampling(
            *(sampling.temperature, sampling.top_p, sampling.min_p, sample.uniform),
            *(
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
                sampling.top_k,
            ),
            _NO_COUNTS if penalized is None else self._copy_counts(penalized.seen),
            _NO_COUNTS if penalized is None else self._copy_counts(penalized.output),
            *self._copy_biases(sampling.logit_bias, vocab_size),
            None if sample.mask is None else self._compute_mask(sample.mask, vocab_size),
            -1 if top_ids is None else len(top_ids),
            None if values is None else values.buffer_info()[0],
            None if top_ids is None else top_ids.buffer_info()[0],
        )

    def _copy_counts(self, counts: TokenCounts) -> Structure:
        ids, occurrences = counts.ids[:], counts.occurrences[:]
        return _TokenCounts(len(ids), self._keep(ids), self._keep(occurrences))

    def _copy_biases(self, biases: dict[int, float], vocab_size: int) -> tuple[int, int, int]:
        if not biases:
            return 0, 0, 0
        if not 0 <= min(biases) <= max(biases) < vocab_size:
            raise IndexError(f"logit_bias has an id outside the vocabulary of {vocab_size}")
        ids, values = array("i", biases), array("f", biases.values())
        return len(ids), self._keep(ids), self._keep(values)

    def _compute_mask(self, mask: TokenMask, vocab_size: int) -> int:
        bits = array("B", mask.compute_bitmask())
        if 8 * len(bits) < vocab_size:
            raise IndexError(f"the mask has {8 * len(bits)} bits for a vocabulary of {vocab_size}")
        return self._keep(bits)

    def _keep(self, values: array[Any]) -> int:
        """Keep an array alive, and return its address."""
        self._keepalive.append(values)
        return values.buffer_info()[0]

    def to_row_results(self, drawn_ids: Sequence[int]) -> list[RowResult]:
        """Convert the ids that the C code has drawn to one RowResult per row."""
        results: list[RowResult] = []
        for sample, id, logprobs in zip(self.samples, drawn_ids, self.logprobs, strict=True):
            if id < 0:
                results.append(RowResult(id, failure=describe_failure(sample)))
            elif logprobs is None:
                results.append(RowResult(id))
            else:
                values, top_ids = logprobs
                top = list(zip(top_ids, values[1:], strict=True))
                results.append(RowResult(id, Logprobs(values[0], top)))
        return results


def _make_logprobs(count: int | None, vocab_size: int) -> tuple[array[float], array[int]] | None:
    if count is None:
        return None
    count = min(count, vocab_size)
    return array("f", bytes(4 * (1 + count))), array("q", bytes(8 * count))
