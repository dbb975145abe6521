"""Models to measure with: random weights in the Qwen3 layout, made once, kept in the cache folder.

    S   6.8 M parameters   hidden 256,  6 layers,  8 query and 4 KV heads of 32
    M   100 M parameters   hidden 768, 10 layers, 12 query and 4 KV heads of 64

The text never matters here, only the ids: the tokenizer reads bytes.
"""

import json
import os
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "continuo" / "bench"
CONTEXT = 131_072
VOCABULARY = 4096

SHAPES: dict[str, dict[str, Any]] = {
    "S": {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 896,
    },
    "M": {
        "hidden_size": 768,
        "num_hidden_layers": 10,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 3328,
    },
}


def folder(name: str) -> Path:
    """The checkpoint `S` or `M`, made if it is not there yet."""
    path = CACHE / name
    if not (path / "model.safetensors").exists():
        path.mkdir(parents=True, exist_ok=True)
        _save_tokenizer(path)
        _save_weights(name, path)
    return path


def _save_weights(name: str, path: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=0,
        **SHAPES[name],
    )
    model = Qwen3ForCausalLM(config)
    model.bfloat16().save_pretrained(path)


def _save_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: n for n, letter in enumerate(letters)}
    vocabulary |= {f"<{n}>": n for n in range(len(letters), VOCABULARY)}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = Decoder()
    tokenizer.save(str(path / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '|' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    )
