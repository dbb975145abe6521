"""Resident memory of the caches of texts, filled with what takes most memory for its length."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from continuo import engine

pytestmark = [pytest.mark.process, pytest.mark.slow]

FILL = f"""
import gc
import sys
from continuo.engine.text import ChatMessage, ModelText
from continuo.engine.allocator import give_memory_back

text = ModelText(sys.argv[1])
tokenizer, renderer = text._tokenizer, text.template._renderer
words = "\U0001f600 ab cd " * 1_000

def resident_bytes():
    gc.collect()
    give_memory_back()
    return int(open("/proc/self/statm").read().split()[1]) * {resource.getpagesize()}

def empty_values(n):
    return {{"type": "function", "n": n, "function": {{"parameters": [[] for _ in range(2_000)]}}}}

def short_messages(n):
    return [ChatMessage(role="user", content=f"{{n}} {{m}}") for m in range(1_000)]

cache, add = {{
    "encodings of short texts": (tokenizer._encodings, lambda n: text.encode(str(n))),
    "encodings of long texts": (
        tokenizer._encodings, lambda n: text.encode(f"{{n}} {{words}}")
    ),
    "renderings of tools": (
        renderer._renderings,
        lambda n: renderer.render([ChatMessage(role="user", content="")], [empty_values(n)]),
    ),
    "renderings of messages": (
        renderer._renderings, lambda n: renderer.render(short_messages(n))
    ),
    "renderings of long texts": (
        renderer._renderings,
        lambda n: renderer.render(
            [ChatMessage(role="user", content=f"{{n}}" + 10 * words)]
        ),
    ),
}}[sys.argv[2]]
cache.bytes_max = {16 * 1024 * 1024}

def fill():
    evicted_bytes, n = cache.evicted_bytes, 0
    while cache.evicted_bytes < evicted_bytes + cache.bytes_max / 4:
        add(n)
        n += 1

fill()
cache.clear()
tokenizer._encodings.clear()
before = resident_bytes()
fill()
if cache is not tokenizer._encodings:
    tokenizer._encodings.clear()
held = resident_bytes() - before
bound = cache.bytes_max
cache.clear()
print(held, resident_bytes() - before, bound)
"""


@pytest.mark.parametrize(
    "kind",
    [
        "encodings of short texts",
        "encodings of long texts",
        "renderings of tools",
        "renderings of messages",
        "renderings of long texts",
    ],
)
def test_worst_texts_stay_within_their_memory_and_give_it_back(kind: str) -> None:
    folder = Path(engine.__file__).parent / "bundled" / "demo"
    done = subprocess.run(
        [sys.executable, "-c", FILL, folder, kind], capture_output=True, text=True, check=True
    )
    held, left, bound = map(int, done.stdout.split())
    assert held <= bound * 1.2
    assert left <= bound * 0.2
