"""Tests of pre-tokenizers: the parts into which they split a text, and the tokenizer of Gemma 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import regex
import tokenizers
import transformers

from continuo.engine.gguf.container import GgufMetadata
from continuo.engine.gguf.pre_tokenizers import ALIASES, REGEXES
from continuo.engine.gguf.tokenizer import TokenizerMetadata, build_tokenizer
from tests.engine.gguf.test_gguf_files import BYTE_CHARS

pytestmark = pytest.mark.torch

TEXTS = (
    "Hello, world! It's 2026, I've 12345 things; YOU'LL see.",
    "  leading, \t tabs\n\n\nand  lines \r\n end   ",
    "\u00e9t\u00e9 na\u0308ive \u0928\u092e\u0938\u094d\u0924\u0947 \ud55c\uad6d\uc5b4",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f 42",
    "def f(x): return {'a': [x**2 // 7]}  # `code` $PATH <tag/> ^~|",
    "CamelCaseWords HTMLParser iOS9 \u0130stanbul'da \u2018quoted\u2019",
    "\u2026 \U0001f600\U0001f680 \u01c5 \u10d0\u1c90 \u1fbe\u1fd3 \u2126\u212a",
)


def tokenizer_of(name: str, **more: Any) -> tokenizers.Tokenizer:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": BYTE_CHARS,
        **more,
    }
    found = TokenizerMetadata(GgufMetadata(Path("model.gguf"), metadata, 0))
    return tokenizers.Tokenizer.from_str(json.dumps(build_tokenizer(found)))


def parts(tokenizer: Any, text: str) -> list[str]:
    """Split a text, and return the part of it that each place of the split has."""
    normalizer = tokenizer.normalizer
    text = normalizer.normalize_str(text) if normalizer else text
    return [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def split(text: str, regexes: tuple[str, ...]) -> list[str]:
    """Split a text by each regex in turn, with Python's `regex`."""
    found = [text]
    for pattern in regexes:
        compiled = regex.compile(pattern)
        next_parts: list[str] = []
        for part in found:
            at = 0
            for match in compiled.finditer(part):
                next_parts += [part[at : match.start()], match[0]]
                at = match.end()
            next_parts.append(part[at:])
        found = [part for part in next_parts if part]
    return found


@pytest.mark.parametrize("name", REGEXES)
def test_text_is_split_by_each_regex_in_turn(name: str) -> None:
    """The regexes mean the same to two implementations."""
    tokenizer = tokenizer_of(name)
    python = tuple(
        regex.sub(r"\\x\{([0-9a-f]+)\}", lambda code: chr(int(code[1], 16)), each)
        for each in REGEXES[name]
    )
    for text in TEXTS:
        normalizer: Any = tokenizer.normalizer
        normalized = normalizer.normalize_str(text) if normalizer else text
        assert parts(tokenizer, text) == split(normalized, python)


@pytest.mark.parametrize("name", ALIASES)
def test_alias_splits_as_what_it_stands_for(name: str) -> None:
    for text in TEXTS[:2]:
        assert parts(tokenizer_of(name), text) == parts(tokenizer_of(ALIASES[name]), text)


VOCABULARY = {character: n for n, character in enumerate(BYTE_CHARS)}


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("qwen2", transformers.Qwen2Tokenizer),
        ("qwen35", transformers.Qwen3_5Tokenizer),
        ("command-r", transformers.CohereTokenizer),
        ("gpt-2", transformers.GPT2Tokenizer),
    ],
)
def test_text_is_split_as_by_transformers(name: str, oracle: Any) -> None:
    expected = oracle(vocab=VOCABULARY, merges=[]).backend_tokenizer
    tokenizer = tokenizer_of(name)
    for text in TEXTS:
        assert parts(tokenizer, text) == parts(expected, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen35", "na\u0308ive 42", ["n\u00e4ive", " ", "4", "2"]),
        (
            "qwen35",
            "\u0928\u092e\u0938\u094d\u0924\u0947!",
            ["\u0928\u092e\u0938\u094d\u0924\u0947", "!"],
        ),
        ("deepseek-v3", "12345 \u4f60\u597d.go", ["123", "45", " ", "\u4f60\u597d", ".go"]),
        ("deepseek-coder", "a = 42\n", ["a", " = ", "4", "2", "\n"]),
        ("deepseek-llm", "one, two\n  ", ["one", ",", " two", "\n", "  "]),
        ("falcon", "x==12345;", ["x", "==", "123", "45", ";"]),
    ],
)
def test_text_is_split_as_published(name: str, text: str, expected: list[str]) -> None:
    assert parts(tokenizer_of(name), text) == expected


def test_tokenizer_of_gemma_4_is_that_of_transformers() -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{n:02X}>" for n in range(256))]
    tokens += ["\u2581", "\n", *"helo wrd", "he", "ll", "hell", "\u2581w", "\n\n"]
    tokens = list(dict.fromkeys(tokens))
    merges = ["h e", "l l", "he ll", "\u2581 w", "\n \n"]
    kinds = [3, 3, 3, 2] + [6] * 256 + [1] * (len(tokens) - 260)
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
    }
    ours = tokenizer_of("default", **metadata)
    pairs: Any = [tuple(merge.split(" ")) for merge in merges]
    theirs: Any = transformers.GemmaTokenizer(
        vocab={token: n for n, token in enumerate(tokens)}, merges=pairs
    )
    for text in ("hello world", " two  spaces", "line\n\nline\n", "\u00e9 \U0001f600"):
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == expected
        assert ours.encode(text).ids == [2, *expected], "BOS comes first"
        assert ours.decode(expected) == theirs.decode(expected)
