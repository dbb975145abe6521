"""Write the generated tables of evidence/models.md.

With --check, only exit with 1 if the file differs.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from continuo.engine import (
    KNOWN_ARCHITECTURES,
    PAGE_TOKENS,
    ModelSize,
    format_bytes,
    read_model_size,
    suggest_models,
)

POOL_BYTES, SESSION_TOKENS = 1 << 30, 4096
"""The pool and the sessions of the table of memory."""
LARGER_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    },
    "openai/gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    },
}
"""Fields that sizes depend on, from the config.json of models that `continuo models` does not
suggest."""
PAGE = Path(__file__).parents[1] / "evidence" / "models.md"


def write_page() -> str:
    """Return the text of the page with its generated parts."""
    text = PAGE.read_text("utf-8")
    for part, lines in PARTS.items():
        start = f"<!-- Written by `python -m tools.write_models`: {part}. -->\n\n"
        before, found, rest = text.partition(start)
        _, end, after = rest.partition("\n\n")
        if not (found and end):
            sys.exit(
                f"{PAGE.name}: expected {start.strip()}, and blank lines around the part after it"
            )
        text = "".join((before, start, "\n".join(lines), end, after))
    return text


def list_architectures() -> list[str]:
    """Return the table of architectures."""
    lines = ["| architecture | models | runs in |", "|---|---|---|"]
    for each in KNOWN_ARCHITECTURES:
        way = f"refused: {each.reason}" if each.way == "refused" else each.way
        lines.append(f"| `{each.name}` | {each.models} | {way} |")
    return lines


def list_memory() -> list[str]:
    """Return the table of the memory of models."""
    headings = ["model", "bfloat16", "int8", "int4"]
    headings += ["KV a token", "tokens in 1 GiB", "sessions of 4,096 tokens"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for name, size in {**suggest_models(), **_measure(LARGER_MODELS)}.items():
        weights = [size.weights_bytes("bfloat16")]
        if size.quantized:
            weights += [size.weights_bytes("bfloat16", each) for each in ("int8", "int4")]
        cells = [*map(format_bytes, weights), "-", "-"][:3]
        plan = size.plan("bfloat16", POOL_BYTES)
        sessions = plan.count_sessions(SESSION_TOKENS, PAGE_TOKENS)
        cells += [_describe_kv(size), f"{plan.pages * PAGE_TOKENS:,}", str(sessions)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _describe_kv(size: ModelSize) -> str:
    """Return the bytes of a token in all layers, and in those with a window."""
    by_window = size.session_memory("bfloat16").token_bytes
    parts = [
        format_bytes(count) + ("" if window is None else f" in a window of {window}")
        for window, count in sorted(by_window.items(), key=lambda item: item[0] or 0)
    ]
    return " and ".join(parts)


def _measure(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelSize]:
    """Return the sizes of models by their config.json."""
    sizes: dict[str, ModelSize] = {}
    with TemporaryDirectory() as folder:
        for name, config in configs.items():
            (Path(folder) / "config.json").write_text(json.dumps(config), "utf-8")
            size = read_model_size(Path(folder))
            assert size is not None
            sizes[name] = size
    return sizes


PARTS = {"architectures": list_architectures(), "memory": list_memory()}
"""Generated parts by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = write_page()
    if not parser.parse_args().check:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        sys.exit(f"evidence/{PAGE.name} is out of date: run python -m tools.write_models")


if __name__ == "__main__":
    main()
