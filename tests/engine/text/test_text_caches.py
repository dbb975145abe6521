"""Memory of the caches of encoded and rendered texts: bounded in bytes, whatever the texts are."""

import random
from array import array
from contextvars import copy_context

import pytest

from continuo.engine import ResidentCache, cache_group
from continuo.engine.text import ChatMessage
from tests.support.checkpoints import family_text

MIB = 1024 * 1024


def test_encodings_of_long_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is a small one, so that few texts fill it."""
    text = family_text("qwen3")
    assert text.cache_sizes["encodings"].bytes_max == 32 * MIB
    encodings: ResidentCache[tuple[str, bool], array[int]] = ResidentCache(MIB, entry_bytes_max=MIB)
    monkeypatch.setattr(text._tokenizer, "_encodings", encodings)  # pyright: ignore[reportPrivateUsage]
    source = random.Random(1)
    for n in range(6):
        words = "".join(source.choice("ab \u4e2d") for _ in range(300))
        ids = text.encode(f"{n} " + words * 200)
        assert text.encode(f"{n} " + words * 200) == ids
        assert encodings.held_bytes <= encodings.bytes_max
    assert encodings.held_bytes > MIB // 2, "the bound was reached"
    assert encodings.evicted_bytes > 0


def test_renderings_of_long_texts_are_bounded() -> None:
    template = family_text("qwen3").template
    assert template is not None
    renderer = template._renderer  # pyright: ignore[reportPrivateUsage]
    for n in range(20):
        renderer.render([ChatMessage(role="user", content=f"{n}" + "\u4e2d" * MIB)])
        renderings = renderer._renderings  # pyright: ignore[reportPrivateUsage]
        assert 0 < renderings.held_bytes <= renderings.bytes_max == 16 * MIB


def test_tenant_keeps_its_share_of_the_cache_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = family_text("qwen3")
    encodings: ResidentCache[tuple[str, bool], array[int]] = ResidentCache(MIB // 8)
    monkeypatch.setattr(text._tokenizer, "_encodings", encodings)  # pyright: ignore[reportPrivateUsage]
    words = "go " * 300

    def use(tenant: str, texts: int) -> None:
        cache_group.set(tenant)
        for n in range(texts):
            text.encode(f"{tenant} {n} {words}")

    def kept(tenant: str, n: int) -> bool:
        return (f"{tenant} {n} {words}", False) in encodings

    copy_context().run(use, "small", 3)
    copy_context().run(use, "large", 600)
    assert not kept("large", 0), "the cache was full"
    assert all(kept("small", n) for n in range(3))


def test_size_of_renderings_is_that_of_all_variants() -> None:
    text = family_text("qwen3")
    assert text.template is not None
    off = text.template.for_effort("off")
    assert off is not text.template
    before = text.cache_sizes["renderings"]
    assert before.bytes_max == 2 * 16 * MIB
    for template in (text.template, off):
        held = text.cache_sizes["renderings"].held_bytes
        template._renderer.render([ChatMessage(role="user", content="new")])  # pyright: ignore[reportPrivateUsage]
        assert text.cache_sizes["renderings"].held_bytes > held
