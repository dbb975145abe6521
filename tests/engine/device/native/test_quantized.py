"""Tests of the C code's products of quantized weights, on their own: values, variants, errors."""

from __future__ import annotations

import ctypes
import platform
import shutil
from ctypes import POINTER, byref, c_float, c_int64
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from continuo.engine.device.models.layers import Linear
from continuo.engine.device.native import compile
from continuo.engine.device.native.native_model import build_quantized
from continuo.engine.device.quantization import (
    BLOCK,
    FORMATS,
    Q4_0,
    Q6_K,
    Q8_0,
    QuantizedMatrix,
    quantize,
)
from continuo.engine.gguf.container import GgmlType
from tests.support.gguf_files import KINDS, encode

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc) is installed"),
]

TARGETS = ["native"] + (
    ["x86-64", "x86-64-v3", "x86-64-v4"] if platform.machine() == "x86_64" else []
)
"""Values of -march for the variants of the C code: VNNI, plain vectors, AVX2, AVX-512."""
SOURCE = """
#include "matmul.h"
void product(const Linear *linear, float *x, float *out, int64_t tokens) {
    for (int64_t t = 0; t < tokens; t++) quantize_in_place(x + t * linear->in, linear->in);
    multiply_quantized(linear->quantized, x, linear->in, tokens, linear->bias, out, linear->out, 0,
                    linear->out / PANEL_ROWS);
}
"""


@pytest.fixture(scope="module", params=TARGETS)
def product(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A function (linear, x) -> out that runs the C code compiled for one target."""
    if not runs(request.param):
        pytest.skip(f"this processor is no {request.param}")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "product.c").write_text(SOURCE)
    flags = [f"-march={request.param}", *compile.COMMON_FLAGS.split(), "-DBF16=1"]
    include = f"-I{compile.SOURCE_FOLDER}"
    compile.compile_to(["cc", *flags, include, str(folder / "product.c")], folder / "product.so")
    library = ctypes.CDLL(str(folder / "product.so"))

    def run(linear: Linear, x: Tensor) -> Tensor:
        keep: list[object] = []
        struct, x = build_quantized(linear, keep), x.clone()
        out = torch.full((len(x), linear.size_out), torch.nan)
        addresses = (
            ctypes.cast(each.data_ptr(), POINTER(c_float))  # pyright: ignore[reportArgumentType]
            for each in (x, out)
        )
        library.product(byref(struct), *addresses, c_int64(len(x)))
        return out

    return run


def runs(target: str) -> bool:
    needed = compile.PROCESSOR_CLASSES.get(platform.machine(), {}).get(target, set())
    return not needed or needed <= set(Path("/proc/cpuinfo").read_text().split())


@cache
def matrix(format: GgmlType, out: int, size_in: int) -> QuantizedMatrix:
    torch.manual_seed(size_in)
    weight = 0.1 * torch.randn(out, size_in)
    if format in (Q8_0, Q4_0):
        return quantize(weight, format)
    return QuantizedMatrix(format, torch.from_numpy(encode(weight.numpy(), KINDS[format.name])))


def layer(*matrices: QuantizedMatrix, bias: Tensor | None = None) -> Linear:
    out = sum(len(each.data) for each in matrices)
    linear = Linear(matrices[0].shape[1], out, torch.empty(0), bias=bias is not None)
    linear.bias = bias
    top = 0
    for each in matrices:
        linear.quantized[top] = each
        top += len(each.data)
    return linear


def expected(matrices: list[QuantizedMatrix], x: Tensor) -> Tensor:
    """Compute the product in fp64, with activations rounded as the C code rounds them."""
    blocks = x.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    rounded = (blocks * torch.where(largest == 0, 0, 127 / largest)).round()
    x = (rounded.double() * (largest / 127)).flatten(-2)
    return torch.cat([x @ each.dequantize().double().T for each in matrices], -1)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("tokens", [1, 3, 16, 37])
def test_product_is_that_of_the_rounded_activations(product, format, tokens: int) -> None:
    weight = matrix(format, 48, 512)
    x = torch.randn(tokens, 512, generator=torch.Generator().manual_seed(tokens))
    x[:, 32:64] = 0
    reference = expected([weight], x)
    error = (product(layer(weight), x) - reference).abs().max() / reference.abs().max()
    assert error < 2e-6, error


def test_formats_may_be_stacked_in_one_layer(product) -> None:
    parts = [matrix(format, 16 * n, 256) for n, format in enumerate(FORMATS, 1)]
    bias = torch.randn(
        sum(len(each.data) for each in parts), generator=torch.Generator().manual_seed(1)
    )
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(2))
    out = product(layer(*parts, bias=bias), x)
    assert torch.allclose(out.double(), expected(parts, x) + bias, atol=1e-4)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_product_of_a_token_does_not_depend_on_the_others(product, format) -> None:
    linear = matrix(format, 32, 256)
    x = torch.randn(23, 256, generator=torch.Generator().manual_seed(3))
    together = product(layer(linear), x)
    apart = torch.cat([product(layer(linear), row[None]) for row in x])
    assert torch.equal(together, apart)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_activation_that_is_not_finite_reaches_every_output(product, value: float) -> None:
    x = torch.ones(2, 256)
    x[1, 77] = value
    out = product(layer(matrix(Q6_K, 32, 256)), x)
    assert out[0].isfinite().all()
    assert not out[1].isfinite().any()


@pytest.mark.parametrize("scale", [1e-7, 6e-8, 1e-5])
def test_scales_below_the_normal_range_of_fp16_are_read(product, scale: float) -> None:
    weight = quantize(torch.full((16, 32), 127 * scale), Q8_0)
    out = product(layer(weight), torch.ones(1, 32))
    stored = torch.tensor(scale).to(torch.float16).item()
    assert out[0].tolist() == pytest.approx([stored * 127 * 32] * 16, rel=1e-5)
