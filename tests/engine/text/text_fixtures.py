"""Small tokenizers of the real kinds, trained here, and checkpoint folders around them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

CORPUS = [
    "Hello, world! This is a test of things: numbers 12345 and words, words, words.\n\n",
    "The user asks the assistant; the system says   nothing.\n\tIt's a tool_call, isn't it?\n",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_response>\n<tool_response>\n',
    "Grüße aus Köln, où est la bibliothèque? Привет мир. 你好世界 こんにちは 😀😃 👩‍👧\n",
    "עברית العربية\n",
] * 5

BYTES = pre_tokenizers.ByteLevel.alphabet()
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(special: Sequence[str], ordinary: Sequence[str] = ()) -> Tokenizer:
    """GPT-2's kind, as Qwen and Llama 3 have it. `ordinary`: added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=BYTES, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ordinary])
    return tokenizer


def sentencepiece_like(special: Sequence[str], *, legacy: bool = True) -> Tokenizer:
    """Llama 2's and Mistral's kind: spaces as ▁, bytes where a character is unknown. `legacy`
    puts a ▁ before every stretch of text, else only before the first."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        show_progress=False,
        limit_alphabet=60,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = state["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    state["model"]["byte_fallback"] = True
    state["model"]["fuse_unk"] = True
    state["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    if legacy:
        state["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        }
    else:
        state["normalizer"] = None
        state["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    return tokenizer


def write_checkpoint(
    folder: Path, tokenizer: Tokenizer, template: str | None = None, **config: Any
) -> Path:
    """The text part of a checkpoint folder; `config` is tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
