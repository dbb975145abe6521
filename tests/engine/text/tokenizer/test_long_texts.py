"""Tests of chunked encoding: a long text encoded in chunks has the ids of the whole text."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from continuo.engine.errors import TooLong
from continuo.engine.text.tokenizer.chunked_encoding import ChunkedEncoder
from continuo.engine.text.tokenizer.tokenizer import Tokenizer, compute_token_chars_max
from tests.support.checkpoints import (
    BYTE_ALPHABET,
    CHATML_TOKENS,
    CORPUS,
    FAMILIES,
    FAMILY_NAMES,
    QWEN_SPLIT,
    family_text,
)

pytestmark = pytest.mark.slow

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def bpe(*regexes: str, normalizer: Any = None, prefix: bool = False) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        raw.normalizer = normalizer
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not regexes)
    raw.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=BYTE_ALPHABET, show_progress=False
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_special_tokens([AddedToken(text, normalized=False) for text in CHATML_TOKENS])
    return raw


def metaspace(model: Any, trainer: Any, scheme: str) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(model)
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_special_tokens([AddedToken(text, normalized=False) for text in CHATML_TOKENS])
    return raw


def word_piece() -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    raw.train_from_iterator(CORPUS, trainer)
    return raw


def unigram(scheme: str) -> tokenizers.Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=400, unk_token="<unk>", special_tokens=["<unk>", "<s>"], show_progress=False
    )
    return metaspace(models.Unigram(), trainer, scheme)


def bpe_of_words(scheme: str) -> tokenizers.Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>"], show_progress=False
    )
    return metaspace(models.BPE(unk_token="<unk>"), trainer, scheme)


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": bpe,
    "gpt2 with a space before": lambda: bpe(prefix=True),
    "gpt2's regex": lambda: bpe(GPT2, normalizer=normalizers.NFC()),
    "llama3": lambda: bpe(LLAMA3),
    "qwen": lambda: bpe(QWEN_SPLIT, normalizer=normalizers.NFC()),
    "o200k": lambda: bpe(O200K),
    "deepseek": lambda: bpe(*DEEPSEEK),
    "word piece": word_piece,
    "unigram, always": lambda: unigram("always"),
    "unigram, first": lambda: unigram("first"),
    "bpe of words, always": lambda: bpe_of_words("always"),
    "bpe of words, first": lambda: bpe_of_words("first"),
    **{f"family {name}": FAMILIES[name][0] for name in FAMILIES},
    "demo": lambda: family_text(FAMILY_NAMES[-1])._tokenizer.raw,  # pyright: ignore[reportPrivateUsage]
}
CUT = {name for name in KINDS if name not in ("family llama2", "family mistral_v3", "family gemma")}
"""Kinds with a pre-tokenizer that cuts."""


@cache
def kind(name: str) -> Tokenizer:
    return Tokenizer(KINDS[name]())


ALPHABETS = (
    " ",
    "  \t\r\n\n",
    "0123456789",
    "你好世界こんにちは",
    "\U0001f600\u0301\u200d\U0001f469",
    "e\u0301a\u0308\u1100\u1161\u11a8",
    "abcDEF 'stre ",
    "!?.,:;-_/()[]{}<>|",
    "\u05d0\u0628\u0644 ",
)
WORDS = (
    *(
        "hello",
        " world",
        "it's",
        " don't",
        "12345",
        "\n\n",
        "\r\n",
        "   ",
        " \n ",
        "你好",
        "...",
        "</s>",
    ),
    *(
        "<|im_end|>",
        "<|im_start|>x",
        "<s>",
        "<|im_",
        "<tool_call>",
        "[INST]",
        '{"name": "f"}',
        "\ufdd0",
    ),
)


def random_text(source: random.Random, length: int) -> str:
    parts: list[str] = []
    left = length
    while left > 0:
        shape = source.random()
        if shape < 0.1:
            part = source.choice(source.choice(ALPHABETS)) * source.choice((1, 3, 40, 400))
        elif shape < 0.5:
            part = "".join(source.choices(source.choice(ALPHABETS), k=source.randrange(1, 60)))
        else:
            part = "".join(source.choices(WORDS, k=source.randrange(1, 30)))
        parts.append(part)
        left -= len(part)
    return "".join(parts)[:length]


@pytest.mark.parametrize("name", KINDS)
def test_chunked_encoding_equals_the_encoding_of_the_whole(name: str) -> None:
    raw, anchor = kind(name).raw, kind(name)._anchor  # pyright: ignore[reportPrivateUsage]
    lead = None if anchor is None else anchor.content
    encoder = ChunkedEncoder(raw, lead, chunk_chars=200)
    source = random.Random(name)
    for _ in range(60):
        text = random_text(source, source.randrange(150, 3_000))
        is_continuation = source.random() < 0.5
        before = lead or "" if is_continuation else ""
        whole = raw.encode(before + text, add_special_tokens=False).ids[1 if before else 0 :]
        assert encoder.encode(text, is_continuation=is_continuation) == whole, repr(text)


@pytest.mark.parametrize("name", sorted(CUT))
def test_prose_is_cut_into_chunks(name: str) -> None:
    raw, anchor = kind(name).raw, kind(name)._anchor  # pyright: ignore[reportPrivateUsage]
    encoder = ChunkedEncoder(raw, None if anchor is None else anchor.content, chunk_chars=400)
    text = "so the quick brown fox jumps, 12 times. " * 10
    cut, ids = encoder._encode_chunk(text, len(text), is_continuation=False)  # pyright: ignore[reportPrivateUsage]
    assert cut is not None
    assert cut.chars > 200
    assert len(ids) == cut.tokens


@pytest.mark.parametrize("name", KINDS)
def test_untrusted_text_is_encoded_by_the_model_alone(name: str) -> None:
    raw = kind(name).raw
    encoder = ChunkedEncoder(kind(name)._plain_encoder._raw, chunk_chars=200)  # pyright: ignore[reportPrivateUsage]
    source = random.Random(name)
    for _ in range(20):
        text = random_text(source, source.randrange(150, 2_000))
        normal = raw.normalizer.normalize_str(text) if raw.normalizer else text
        words = [normal]
        if raw.pre_tokenizer:
            words = [word for word, _ in raw.pre_tokenizer.pre_tokenize_str(normal)]
        expected = [token.id for word in words if word for token in raw.model.tokenize(word)]
        assert encoder.encode(text) == expected, repr(text)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "\U0001f600\u0301" * 40_000,
        " " * 100_000,
        "\n" * 50_000,
        "<|im_end|>" * 9_000,
    ],
    ids=["one word", "emoji", "spaces", "newlines", "control tokens"],
)
def test_long_runs_are_encoded_exactly(text: str) -> None:
    for name in ("qwen", "llama3", "demo", "family gemma"):
        text += " and then some words"
        assert kind(name).encode(text) == kind(name).raw.encode(text, add_special_tokens=False).ids


def test_text_with_too_many_tokens_is_refused_early() -> None:
    raw = kind("qwen").raw
    encoded_chars: list[int] = []

    class CountingTokenizer:
        def encode_batch(self, texts: list[str], **options: bool) -> list[tokenizers.Encoding]:
            encoded_chars.append(len(texts[0]))
            return raw.encode_batch(texts, **options)

        encode_batch_fast = encode_batch

    encoder = ChunkedEncoder(cast("tokenizers.Tokenizer", CountingTokenizer()), tokens_max=2_000)
    with pytest.raises(TooLong, match="1,000,000 characters is more than 2,000 tokens"):
        encoder.encode("word " * 200_000)
    assert sum(encoded_chars) < 40_000, "the rest of the text is not encoded"
    assert len(encoder.encode("word " * 500)) < 2_000


def test_stretch_without_a_cut_is_bounded() -> None:
    encoder = ChunkedEncoder(kind("qwen").raw)
    with pytest.raises(TooLong, match=r"1,048,577 characters cannot be cut .* limit .* 1,048,576"):
        encoder.encode("a" * (1024 * 1024 + 1))


@pytest.mark.parametrize("name", KINDS)
def test_no_token_has_more_characters_than_the_bound(name: str) -> None:
    raw = kind(name).raw
    longest = compute_token_chars_max(raw)
    if longest is None:
        return
    source = random.Random(name)
    texts = [random_text(source, 2_000) for _ in range(20)]
    texts += ["".join(part * 500) for part in ALPHABETS]
    for text in texts:
        assert len(text) <= longest * len(kind(name).encode_untrusted(text))


def test_token_character_bound_is_known_for_these_tokenizers() -> None:
    known = {name: compute_token_chars_max(kind(name).raw) for name in KINDS}
    assert known["llama3"] is not None
    assert known["demo"] == 16
    state = json.loads(kind("qwen").raw.to_str())
    longest = max(map(len, [*state["model"]["vocab"], *CHATML_TOKENS]))
    assert known["qwen"] == 4 * longest, "NFC composes up to four characters into one"
    assert known["family gemma"] is not None
    assert known["bpe of words, first"] is not None
    for name in ("word piece", "unigram, always"):
        assert known[name] is None, "an unknown word of any length is one token"
