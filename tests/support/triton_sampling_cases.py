"""Program run under TRITON_INTERPRET=1 (see test_sampling_kernels.py): compares sampling kernels
with the plain sampler and with the slow reference, and exits with 1 if they differ."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from hypothesis import given, settings
from torch import Tensor

from continuo.engine.batch import SampleParams
from continuo.engine.device import sampling
from continuo.engine.device.kernels import sampling_kernels
from continuo.engine.device.sampling import draw
from continuo.engine.sampling import Sampling
from tests.support.sampling_reference import Only, reference_ids, tables


def ids_of(logits: Tensor, samples: list[SampleParams]) -> list[int]:
    return draw(logits, samples).to_host().ids.tolist()


def use(kernels: object) -> None:
    sampling.find_kernels = lambda _device: kernels  # pyright: ignore


@settings(max_examples=25, deadline=None, derandomize=True)
@given(table=tables())
def check_small(table: tuple[list[list[float]], list[SampleParams]]) -> None:
    """Small vocabularies, with ties, penalties, masks and all limits."""
    rows, samples = table
    together = draw(torch.tensor(rows), samples).to_host().to_row_results(samples)
    for row, sample, drawn in zip(rows, samples, together, strict=True):
        assert drawn.id in reference_ids(row, sample), (row, sample, drawn)
        assert drawn.failure is None


def random_samples(source: random.Random, count: int) -> list[SampleParams]:
    return [
        SampleParams(
            Sampling(
                temperature=source.choice([0.0, 0.2, 1.0, 1.5]),
                top_k=source.choice([0, 0, 1, 40, 1500]),
                top_p=source.choice([1.0, 0.95, 0.3]),
                min_p=source.choice([0.0, 0.0, 0.05]),
            ),
            uniform=source.choice([0.0, source.random(), source.random(), 1 - 2**-53]),
        )
        for _ in range(count)
    ]


def check_large() -> None:
    """Vocabularies of several blocks, in each dtype of logits: the ids are those of the CPU."""
    source, generator = random.Random(0), torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for spread in (0.01, 3.0):
            logits = (torch.randn(6, 2500, generator=generator) * spread).to(dtype)
            logits[:, ::7] = -torch.inf
            logits[3, 100:900] = 0.0
            logits[3, 101:901:2] = -0.0
            samples = random_samples(source, 6)
            use(sampling_kernels)
            sampling_kernels.SPLIT = source.choice([1024, 4096])
            found = ids_of(logits, samples)
            use(None)
            expected = ids_of(logits, samples)
            for row, (id, other) in enumerate(zip(found, expected, strict=True)):
                if id != other:  # within rounding of a border
                    assert id in reference_ids(logits[row].tolist(), samples[row]), samples[row]


class ListsAlone:
    """The kernel that draws, without its launch for what the lists of candidates do not decide."""

    def __init__(self) -> None:
        self.kernel = sampling_kernels._draw

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            if constants["FROM_LISTS"]:
                self.kernel[grid](*args, **constants)

        return launch


def check_lists() -> None:
    """Lists of the first candidates decide draws with a limit; a row that they do not decide keeps
    the likeliest id until it is drawn from the whole vocabulary."""
    sampling_kernels.SPLIT = 1024
    logits = torch.randn(6, 2500, generator=torch.Generator().manual_seed(0))
    logits[4] = -torch.inf
    logits[4, 3::25] = 1.5
    limits = [{"top_k": 40}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.2}, {"top_p": 0.05}, {}, {}]
    samples = [SampleParams(Sampling(temperature=0.8, **each), uniform=0.9) for each in limits]
    use(None)
    expected = ids_of(logits, samples)
    use(sampling_kernels)
    assert ids_of(logits, samples) == expected
    sampling_kernels._draw = ListsAlone()  # pyright: ignore
    found = ids_of(logits, samples)
    assert found[:5] == expected[:5]
    assert found[5] == int(logits[5].argmax()) != expected[5]


def check_failures() -> None:
    """A row fails alone, and its id is one of the vocabulary."""
    use(sampling_kernels)
    warm = SampleParams(Sampling(temperature=0.8, top_p=0.9), uniform=0.5)
    for bad in (math.nan, math.inf):
        logits = torch.randn(3, 900, generator=torch.Generator().manual_seed(0))
        sound = ids_of(logits, [warm] * 3)
        logits[1, 17] = bad
        broken = draw(logits, [warm] * 3).to_host().to_row_results([warm] * 3)
        assert [each.failure is None for each in broken] == [True, False, True]
        assert [broken[0].id, broken[2].id] == [sound[0], sound[2]]
        assert 0 <= broken[1].id < 900


def check_min_p() -> None:
    """min-p cuts just above and just below the weight of the less likely ids."""
    use(sampling_kernels)
    logits = [0.0] * 3 + [-1.2] * 40
    for min_p in (math.exp(-1.3), math.exp(-1.1), 1.0):
        for uniform in (0.1, 0.35, 0.6, 0.9):
            sample = SampleParams(Sampling(temperature=1.0, min_p=min_p), uniform=uniform)
            [id] = ids_of(torch.tensor([logits]), [sample])
            assert id in reference_ids(logits, sample)


def check_masks() -> None:
    """Masks of vocabularies that are no multiple of eight, beside rows without one."""
    generator = torch.Generator().manual_seed(0)
    for vocab in (900, 1031):
        logits = torch.randn(5, vocab, generator=generator)
        mask = Only(set(range(3, vocab, 7)), vocab)
        warm = SampleParams(Sampling(temperature=1.0), uniform=1 - 2**-53)
        samples = [SampleParams(), warm, warm, SampleParams(), SampleParams()]
        for row in (1, 3, 4):
            samples[row] = msgspec.structs.replace(samples[row], mask=mask)
        use(sampling_kernels)
        found = ids_of(logits, samples)
        masked = sampling_kernels.mask(logits, samples)
        use(None)
        assert found == ids_of(logits, samples)
        allowed = torch.arange(vocab) % 7 == 3
        for row in range(5):
            expected = logits[row]
            if row in (1, 3, 4):
                expected = expected.masked_fill(~allowed, -torch.inf)
            assert torch.equal(masked[row], expected)


def main(case: str) -> None:
    torch.set_num_threads(1)
    use(sampling_kernels)
    {
        "small": check_small,
        "large": check_large,
        "lists": check_lists,
        "failures": check_failures,
        "masks": check_masks,
        "min_p": check_min_p,
    }[case]()


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1])
