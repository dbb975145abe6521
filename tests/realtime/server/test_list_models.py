"""The models that `continuo models` suggests: their sizes, and whether they fit."""

from typing import NamedTuple

import pytest

from continuo.engine import KNOWN_ARCHITECTURES
from continuo.realtime.server.list_models import (
    SUGGESTED_MODELS,
    SuggestedModel,
    describe_families,
)

GIB = 1 << 30


class Config(NamedTuple):
    """Sizes of a decoder as in its config.json, with tied embeddings unless `untied`."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    head_dim: int
    attention_extras: int = 0
    """Parameters of the biases of q, k and v, or of the norms of q and k, in one layer."""
    untied: bool = False

    @property
    def parameter_count(self) -> int:
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (2 if self.untied else 1)
        return embeddings + self.layers * (layer + self.attention_extras) + self.hidden


def qwen2_biases(heads: int, kv_heads: int, head_dim: int) -> int:
    return (heads + 2 * kv_heads) * head_dim


QWEN3_NORMS = 2 * 128
CONFIGS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": Config(49152, 576, 30, 9, 3, 1536, 64),
    "HuggingFaceTB/SmolLM2-360M-Instruct": Config(49152, 960, 32, 15, 5, 2560, 64),
    "Qwen/Qwen3-0.6B": Config(151936, 1024, 28, 16, 8, 3072, 128, QWEN3_NORMS),
    "Qwen/Qwen2.5-1.5B-Instruct": Config(
        151936, 1536, 28, 12, 2, 8960, 128, qwen2_biases(12, 2, 128)
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Config(49152, 2048, 24, 32, 32, 8192, 64),
    "Qwen/Qwen3-1.7B": Config(151936, 2048, 28, 16, 8, 6144, 128, QWEN3_NORMS),
    "Qwen/Qwen3-4B-Instruct-2507": Config(151936, 2560, 36, 32, 8, 9728, 128, QWEN3_NORMS),
    "Qwen/Qwen3-8B": Config(151936, 4096, 36, 32, 8, 12288, 128, QWEN3_NORMS, untied=True),
}


@pytest.mark.parametrize("model", SUGGESTED_MODELS, ids=lambda model: model.name)
def test_parameter_count_follows_from_the_config(model: SuggestedModel) -> None:
    assert model.parameter_count == CONFIGS[model.name].parameter_count


def test_models_are_sorted_by_size_and_fit_by_it() -> None:
    counts = [model.parameter_count for model in SUGGESTED_MODELS]
    assert counts == sorted(counts)
    assert [model.fits(4 * GIB) for model in SUGGESTED_MODELS] == [True] * 3 + [False] * 5
    assert all(model.fits(24 * GIB) for model in SUGGESTED_MODELS)
    assert not any(model.fits(GIB) for model in SUGGESTED_MODELS)


@pytest.mark.parametrize("width", [60, 100])
def test_families_are_listed_by_what_runs_them_and_by_the_reason_of_a_refusal(width: int) -> None:
    lines = list(describe_families(width))
    assert all(len(line) <= width for line in lines)
    text = " ".join(line.strip() for line in lines)
    native, _, rest = text.partition("Families that run through transformers")
    slower, _, refused = rest.partition("Families that are refused:")
    for each in KNOWN_ARCHITECTURES:
        place = {"transformers": slower, "refused": refused}.get(each.way, native)
        assert each.models in place
        assert each.reason in place
