"""Tests of the fused operations of a decoder layer under Triton's interpreter, against the plain
ones in torch."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.triton_interpreter import run_interpreted

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]


@pytest.mark.parametrize("operation", ["add_norm", "attend", "gate"])
def test_fused_operation_equals_the_plain_one(operation: str) -> None:
    """Cases: fp32, fp16, bf16; centered norms; heads of each kind; activations."""
    run_interpreted("tests.support.triton_layer_cases", operation)


@pytest.mark.parametrize(
    "models",
    [
        ["qwen3", "Gemma 2", "Granite 3 MoE"],
        ["Gemma 4 (text)", "gpt-oss 20B, 120B", "Qwen 3.5 MoE (text)"],
    ],
)
def test_decoder_on_fused_operations_has_the_logits_of_the_plain_one(models: list[str]) -> None:
    """A prompt in chunks, and decode steps; windows, soft caps, sinks, gates, output norms."""
    run_interpreted("tests.support.triton_layer_cases", "decoder", *models)


@pytest.mark.parametrize("model", ["qwen3", "Gemma 2"])
def test_padded_steps_of_graphs_have_the_ids_of_steps_without_graphs(model: str) -> None:
    """Graphs are called in place of captured: plans and pages at fixed addresses, padding."""
    run_interpreted("tests.support.triton_layer_cases", "graphs", model)
