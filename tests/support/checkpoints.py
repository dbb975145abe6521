"""Small tokenizers like those of well-known model families, and checkpoint folders with them."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
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

from continuo import engine
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.text import ChatTemplate, ModelText

CORPUS = [
    "Hello, world! This is a test of things: numbers 12345 and words, words, words.\n\n",
    "The user asks the assistant; the system says   nothing.\n\tIt's a tool_call, isn't it?\n",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_response>\n<tool_response>\n',
    "Grüße aus Köln, où est la bibliothèque? Привет мир. 你好世界 こんにちは 😀😃 👩‍👧\n",
    "עברית العربية\n",
] * 5

BYTE_ALPHABET = pre_tokenizers.ByteLevel.alphabet()
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level_tokenizer(special: Sequence[str], ordinary: Sequence[str] = ()) -> Tokenizer:
    """Train a small byte-level BPE tokenizer like those of GPT-2, Qwen and Llama 3.

    `special` and `ordinary`: special and other tokens to add to the vocabulary.
    """
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
        CORPUS,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=BYTE_ALPHABET, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ordinary])
    return tokenizer


def sentencepiece_tokenizer(special: Sequence[str], *, legacy: bool = True) -> Tokenizer:
    """Train a small BPE tokenizer like those of Llama 2 and Mistral, with spaces as ▁ and unknown
    characters as bytes.

    `legacy` puts a ▁ before each stretch of text between special tokens, otherwise only before the
    first. `special`: special tokens to add to the vocabulary.
    """
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
    """Write the tokenizer and the chat template of a checkpoint into `folder`. Returns `folder`.

    `template`: chat template; `config`: fields of tokenizer_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_TAG_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
MISTRAL_TOKENS = [
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
]
MISTRAL_ARGS_TOKENS = ["[ARGS]", "[CALL_ID]"]
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

FAMILIES: dict[str, tuple[Callable[[], Tokenizer], dict[str, str]]] = {
    "chatml": (lambda: byte_level_tokenizer(CHATML_TOKENS), {"eos_token": "<|im_end|>"}),
    "qwen2_5": (
        lambda: byte_level_tokenizer(CHATML_TOKENS, QWEN_TAG_TOKENS[:2]),
        {"eos_token": "<|im_end|>"},
    ),
    "qwen3": (
        lambda: byte_level_tokenizer(CHATML_TOKENS, QWEN_TAG_TOKENS),
        {"eos_token": "<|im_end|>"},
    ),
    "llama3": (
        lambda: byte_level_tokenizer([*LLAMA3_TOKENS, "<|python_tag|>"]),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "mistral_v3": (
        lambda: sentencepiece_tokenizer(MISTRAL_TOKENS, legacy=False),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "mistral_small": (
        lambda: byte_level_tokenizer(["<s>", "</s>", *MISTRAL_TOKENS]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "mistral_args": (
        lambda: byte_level_tokenizer(["<s>", "</s>", *MISTRAL_TOKENS, *MISTRAL_ARGS_TOKENS]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "llama2": (lambda: sentencepiece_tokenizer([]), {"bos_token": "<s>", "eos_token": "</s>"}),
    "gemma": (
        lambda: sentencepiece_tokenizer(["<start_of_turn>", "<end_of_turn>"], legacy=False),
        {"bos_token": "<s>", "eos_token": "<end_of_turn>"},
    ),
    "numbered": (
        lambda: byte_level_tokenizer(["<s>", "</s>"]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "counting": (
        lambda: byte_level_tokenizer(["<s>", "</s>"]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
}
"""Model families by name: the maker of the tokenizer, and the fields of tokenizer_config.json. The
chat template of each is `templates/<name>.jinja`."""


FAMILY_NAMES = (*FAMILIES, BUNDLED_MODEL)


@cache
def family_folder(name: str) -> Path:
    """Return the checkpoint folder of a family of FAMILIES or of the bundled model.

    The folder of a family is temporary: it is written on the first call and deleted at exit.
    """
    if name == BUNDLED_MODEL:
        return Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL
    folder = Path(tempfile.mkdtemp(prefix="continuo-text-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer, config = FAMILIES[name]
    template = (Path(__file__).parent / "templates" / f"{name}.jinja").read_text("utf-8")
    return write_checkpoint(folder, tokenizer(), template, **config)


@cache
def family_text(name: str) -> ModelText:
    return ModelText(str(family_folder(name)))


def family_template(name: str) -> ChatTemplate:
    template = family_text(name).template
    assert template is not None
    return template
