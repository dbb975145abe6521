"""Records the launches of Triton kernels in place of making them, so that they can be counted, and
their kernels compiled, on a machine without a GPU. What the kernels would write is undefined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGET = GPUTarget("cuda", 90, 32)
"""Hopper, whose warps have 32 threads."""


class KernelVariant(NamedTuple):
    """A kernel with its constants and what Triton specializes of its arguments: a variant is
    compiled once."""

    name: str
    key: str


@dataclass
class LaunchRecorder:
    """Context manager in which launches are recorded."""

    counts: Counter[KernelVariant] = field(default_factory=Counter)
    """Launches of each variant."""
    compilers: dict[KernelVariant, Callable[[], Any]] = field(default_factory=dict)
    """For each variant, the function that compiles it for TARGET."""

    def __enter__(self) -> LaunchRecorder:
        self._run = JITFunction.run
        recorder = self

        def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            del warmup
            assert all(size > 0 for size in grid), f"{kernel.__name__}: the grid is empty"
            recorder.record(kernel, args, kwargs)

        JITFunction.run = record  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *_: object) -> None:
        JITFunction.run = self._run

    def record(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        backend = triton.compiler.make_backend(TARGET)
        bind = create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, options = bind(*args, **kwargs)
        variant = KernelVariant(kernel.__name__, f"{specialization} {options}")
        self.counts[variant] += 1
        if variant in self.compilers:
            return
        parsed, signature, constants, attributes = kernel._pack_args(  # noqa: SLF001 - as in JITFunction.run
            backend, kwargs, bound, specialization, options
        )

        def compile_variant() -> Any:
            source = triton.compiler.ASTSource(kernel, signature, constants, attributes)
            return triton.compiler.compile(source, target=TARGET, options=parsed.__dict__)

        self.compilers[variant] = compile_variant
