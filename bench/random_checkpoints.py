"""Models for benchmarks: random weights in the Qwen3 layout, generated once and cached on disk.

    S   6.8 M parameters   hidden 256,  6 layers,  8 query and 4 KV heads of 32
    M   100 M parameters   hidden 768, 10 layers, 12 query and 4 KV heads of 64

Each id is one character, so that decoded output encodes to the same ids. Greedy output varies, so
that two ways of serving a model can be compared by their ids; with a tied head or small weights a
random model would repeat one id.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "bench"
CONTEXT = 131_072
VOCAB_SIZE = 4096
WEIGHT_STDDEV = 0.05
"""Standard deviation of the random weights."""
RECIPE_VERSION = 3
"""Suffix of a cached checkpoint's folder. Increment it with every change to the generation of
checkpoints."""

_OTHER_LETTERS = [chr(ord("\u4e00") + n) for n in range(VOCAB_SIZE - 96)]
ID_OF_LETTER = {
    letter: n
    for n, letter in enumerate(
        (_OTHER_LETTERS[0], "\n", *map(chr, range(32, 127)), *_OTHER_LETTERS[1:])
    )
}
"""Token id of each character. Id 0, that of the first character, is the stop id."""

MODEL_SIZES: dict[str, dict[str, int]] = {
    "S": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 768,
    },
    "M": {
        "hidden_size": 768,
        "num_hidden_layers": 10,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 3392,
    },
}


def ensure_checkpoint(name: str) -> Path:
    """Return the folder of checkpoint `S` or `M`. Generates the checkpoint unless it is cached."""
    path = CACHE_FOLDER / f"{name}-{RECIPE_VERSION}"
    if not path.exists():
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE_FOLDER, ignore_cleanup_errors=True) as folder:
            save_checkpoint(MODEL_SIZES[name], Path(folder))
            # Another benchmark may have generated the same checkpoint meanwhile.
            with contextlib.suppress(OSError):
                Path(folder).rename(path)
    return path


def save_checkpoint(shape: Mapping[str, int], path: Path) -> None:
    """Generate a checkpoint with these sizes (fields of Qwen3Config) and save it to the folder
    `path`. Deterministic."""
    save_tokenizer(path)
    _save_weights(shape, path)


def _save_weights(shape: Mapping[str, int], path: Path) -> None:
    # Slow to import, and needed only once per machine.
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=WEIGHT_STDDEV,
        eos_token_id=0,
        **shape,  # pyright: ignore[reportArgumentType]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    model.bfloat16().save_pretrained(path)


def save_tokenizer(path: Path) -> None:
    """Save the tokenizer and its chat template to the folder `path`."""
    tokenizer = Tokenizer(BPE(ID_OF_LETTER, []))
    tokenizer.decoder = Fuse()
    tokenizer.save(str(path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '|' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    )
