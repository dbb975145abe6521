"""Tests of the detokenizer: streamed text equals decoded text, in whole characters."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.text import Detokenizer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from tests.support.checkpoints import byte_level_tokenizer, family_folder, sentencepiece_tokenizer

BYTE_LEVEL = Tokenizer(byte_level_tokenizer(["<|end|>", "<|tool|>"]))
PIECES = Tokenizer(sentencepiece_tokenizer(["[INST]"]))
KINDS = pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(BYTE_LEVEL, id="byte-level"),
        pytest.param(PIECES, id="pieces-legacy"),
        pytest.param(Tokenizer(sentencepiece_tokenizer([], legacy=False)), id="pieces"),
        pytest.param(Tokenizer.load(family_folder(BUNDLED_MODEL)), id="bundled"),
    ],
)
TEXT = st.text(max_size=40) | st.text(
    st.sampled_from([*"ab \n😀👩‍🇩🇪é", "\u0301", "你", "ש", "ع", "\u200f", "\ufffd"]),
    max_size=30,
)


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40)


def push_each(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push([id]) for id in ids), detokenizer.flush()]


def whole_characters(pieces: list[str]) -> bool:
    return all("\ufffd" not in piece for piece in pieces)


@KINDS
@given(text=TEXT)
def test_detokenized_text_equals_the_decoded_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = push_each(Detokenizer(tokenizer), ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "\ufffd" in text or whole_characters(pieces)


@KINDS
@given(text=TEXT, data=st.data())
def test_push_never_emits_half_a_character(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text.replace("\ufffd", ""))
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(tokenizer)
    assert whole_characters([detokenizer.push([id]) for id in ids[:cut]])


@given(ids=ids_of(BYTE_LEVEL))
def test_arbitrary_byte_level_ids_decode_as_by_the_tokenizer(ids: list[int]) -> None:
    assert "".join(push_each(Detokenizer(BYTE_LEVEL), ids)) == BYTE_LEVEL.decode(ids)


def byte_id(byte: int) -> int:
    id = PIECES.id_of(f"<0x{byte:02X}>")
    assert id is not None
    return id


@given(ids=ids_of(PIECES))
@example([byte_id(byte) for byte in "é".encode()] + [byte_id(0xFF)] + PIECES.encode("a"))
def test_arbitrary_byte_fallback_ids_keep_all_whole_characters(ids: list[int]) -> None:
    """The tokenizer drops whole characters before a broken byte; the detokenizer keeps them."""
    text, reference = "".join(push_each(Detokenizer(PIECES), ids)), PIECES.decode(ids)
    if "\ufffd" not in reference:
        assert text == reference
    else:
        assert len(text) > 0
        words = [word for word in re.split("\ufffd+", reference) if word]
        at = 0
        for word in words:
            at = text.index(word, at) + len(word)


@given(ids=ids_of(BYTE_LEVEL), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_text_does_not_depend_on_the_grouping_of_ids(ids: list[int], cuts: list[int]) -> None:
    one, many = Detokenizer(BYTE_LEVEL), Detokenizer(BYTE_LEVEL)
    borders = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    grouped = [many.push(ids[a:b]) for a, b in pairwise(borders)]
    assert "".join([*grouped, many.flush()]) == "".join(push_each(one, ids))


def test_held_back_bytes_are_bounded() -> None:
    """A thousand bytes of invalid UTF-8 are emitted with a bounded delay."""
    broken = BYTE_LEVEL.id_of("ÿ")  # the byte FF
    assert broken is not None
    detokenizer = Detokenizer(BYTE_LEVEL)
    emitted = sum(len(detokenizer.push([broken])) for _ in range(1000))
    assert 900 < emitted <= 1000
    assert emitted + len(detokenizer.flush()) == 1000


@KINDS
@given(data=st.data())
def test_flush_repeats_no_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """A flush ends the text so far; the rest decodes as a continuation."""
    first = data.draw(ids_of(tokenizer))
    rest = tokenizer.encode(data.draw(TEXT).replace("\ufffd", ""))
    detokenizer = Detokenizer(tokenizer)
    push_each(detokenizer, first)
    after = "".join(push_each(detokenizer, rest))
    assert "\ufffd" not in after
    assert after.strip() == tokenizer.decode(rest).strip()


def test_text_after_invalid_bytes_is_decoded() -> None:
    broken = BYTE_LEVEL.id_of("ÿ")
    assert broken is not None
    ids = [broken] * 200 + BYTE_LEVEL.encode("Hello")
    assert "".join(push_each(Detokenizer(BYTE_LEVEL), ids)) == BYTE_LEVEL.decode(ids)


def test_special_tokens_are_hidden_unless_visible() -> None:
    end, tool = BYTE_LEVEL.id_of("<|end|>"), BYTE_LEVEL.id_of("<|tool|>")
    assert end is not None
    assert tool is not None
    ids = [*BYTE_LEVEL.encode("a é"), tool, *BYTE_LEVEL.encode(" b"), end]
    assert "".join(push_each(Detokenizer(BYTE_LEVEL), ids)) == "a é b"
    assert "".join(push_each(Detokenizer(BYTE_LEVEL, visible_ids={tool}), ids)) == "a é<|tool|> b"


def test_words_keep_their_spaces_after_a_flush() -> None:
    """Pieces that begin with ▁ lose that space only at the start of the text."""
    broken, two = [byte_id(0xF0)], PIECES.encode("two")
    assert PIECES.decode(two) == "two"
    detokenizer = Detokenizer(PIECES)
    assert detokenizer.push(broken) + detokenizer.flush() == "\ufffd"
    assert detokenizer.push(two) == " two"


def test_flush_of_half_a_character_emits_a_replacement_character() -> None:
    ids = BYTE_LEVEL.encode("a\U0001fae0")
    assert len(ids) > 2
    detokenizer = Detokenizer(BYTE_LEVEL)
    assert detokenizer.push(ids[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
