"""Models for benchmarks: random weights in the Qwen3 layout, generated once and cached on disk.

    S   6.8 M parameters   hidden 256,  6 layers,  8 query and 4 KV heads of 32
    M   100 M parameters   hidden 768, 10 layers, 12 query and 4 KV heads of 64
    L   0.6 B parameters   hidden 1024, 28 layers, 16 query and 8 KV heads of 128, the shape of
                           Qwen3-0.6B and its vocabulary of 151,936; its output head is not tied,
                           so that there are 0.15 B more, which a step does not read
    H   5.2 M parameters   hidden 256,  4 layers in the layout of Qwen3.5: a gated delta net in
                           three, attention with 8 query and 4 KV heads of 32 in the fourth

Each id is one character, so that decoded output encodes to the same ids. The chat template adds
TEMPLATE_IDS ids to a turn, so that a text can have as many ids as a benchmark needs. Greedy output
varies, so that two ways of serving a model can be compared by their ids; with a tied head or small
weights a random model would repeat one id.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE

CACHE_FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "bench"
CONTEXT = 131_072
VOCAB_SIZE = 4096
WEIGHT_STDDEV = 0.05
"""Standard deviation of the random weights."""
RECIPE_VERSION = 4
"""Suffix of a cached checkpoint's folder. Increment it with every change to the generation of
checkpoints."""

TEMPLATE_IDS = 4
"""Ids that the chat template adds to each turn but the first: one ends the answer before, two are
around the user's text, one begins the answer."""


def list_letters(vocab_size: int) -> list[str]:
    """List the characters of a vocabulary by their ids. Smaller vocabularies are its beginning."""
    cjk = [chr(0x4E00 + n) for n in range(VOCAB_SIZE - 96)]
    more = [chr(0x20000 + n) for n in range(vocab_size - VOCAB_SIZE)]
    return [cjk[0], "\n", *map(chr, range(32, 127)), *cjk[1:], *more]


LARGE_VOCAB_SIZE = 151_936
_LETTERS = list_letters(LARGE_VOCAB_SIZE)
ID_OF_LETTER = {letter: n for n, letter in enumerate(_LETTERS[:VOCAB_SIZE])}
"""Token id of each character. Id 0, that of the first character, is the stop id."""


def write_text(ids: Sequence[int]) -> str:
    """Return the text that has these ids in the vocabulary of any of these models."""
    return "".join(_LETTERS[id] for id in ids)


MODEL_SIZES: dict[str, dict[str, Any]] = {
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
    "L": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": LARGE_VOCAB_SIZE,
    },
    "H": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 768,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
}


def ensure_checkpoint(name: str) -> Path:
    """Return the folder of checkpoint `name` (see MODEL_SIZES); generate it unless it is cached."""
    path = CACHE_FOLDER / f"{name}-{RECIPE_VERSION}"
    if not path.exists():
        CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE_FOLDER, ignore_cleanup_errors=True) as folder:
            save_checkpoint(MODEL_SIZES[name], Path(folder))
            # Another benchmark may have generated the same checkpoint meanwhile.
            with contextlib.suppress(OSError):
                Path(folder).rename(path)
    return path


def save_checkpoint(shape: Mapping[str, Any], path: Path) -> None:
    """Generate a checkpoint with these sizes (fields of Qwen3Config; with `layer_types`, of
    Qwen3_5TextConfig) and save it to the folder `path`. Deterministic."""
    save_tokenizer(path, shape.get("vocab_size", VOCAB_SIZE))
    _save_weights(shape, path)


def _save_weights(shape: Mapping[str, Any], path: Path) -> None:
    # Slow to import, and needed only once per machine.
    import torch  # noqa: PLC0415
    from transformers import (  # noqa: PLC0415
        Qwen3_5ForCausalLM,
        Qwen3_5TextConfig,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    is_hybrid = "layer_types" in shape
    config: Any = (Qwen3_5TextConfig if is_hybrid else Qwen3Config)(
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=WEIGHT_STDDEV,
        eos_token_id=0,
        **{"vocab_size": VOCAB_SIZE, **shape},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make: Any = Qwen3_5ForCausalLM if is_hybrid else Qwen3ForCausalLM
        model = make(config)
    model.bfloat16().save_pretrained(path)


def save_tokenizer(path: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """Save the tokenizer and its chat template to the folder `path`."""
    ids = {letter: n for n, letter in enumerate(_LETTERS[:vocab_size])}
    tokenizer = Tokenizer(BPE(ids, []))
    tokenizer.decoder = Fuse()
    tokenizer.save(str(path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ m['role'][0] + m['content'] + '|' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a' }}{% endif %}"
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    )
