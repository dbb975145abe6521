import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.text import Detokenizer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from tests.support.checkpoints import byte_level, family_folder, sentencepiece_like

BYTE_LEVEL = Tokenizer(byte_level(["<|end|>", "<|tool|>"]))
PIECES = Tokenizer(sentencepiece_like(["[INST]"]))
KINDS = pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(BYTE_LEVEL, id="byte-level"),
        pytest.param(PIECES, id="pieces-legacy"),
        pytest.param(Tokenizer(sentencepiece_like([], legacy=False)), id="pieces"),
        pytest.param(Tokenizer.load(family_folder(BUNDLED_MODEL)), id="bundled"),
    ],
)
TEXT = st.text(max_size=40) | st.text(
    st.sampled_from([*"ab \n😀👩‍🇩🇪é", "\u0301", "你", "ש", "ع", "\u200f", "\ufffd"]),
    max_size=30,
)


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40)


def pushed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push([id]) for id in ids), detokenizer.flush()]


def whole_characters(pieces: list[str]) -> bool:
    return all("\ufffd" not in piece for piece in pieces)


@KINDS
@given(text=TEXT)
def test_text_comes_back_whole(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = pushed(Detokenizer(tokenizer), ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "\ufffd" in text or whole_characters(pieces)


@KINDS
@given(text=TEXT, data=st.data())
def test_cut_anywhere_it_never_shows_half_a_character(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    ids = tokenizer.encode(text.replace("\ufffd", ""))
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = Detokenizer(tokenizer)
    assert whole_characters([detokenizer.push([id]) for id in ids[:cut]])


@given(ids=ids_of(BYTE_LEVEL))
def test_any_ids_byte_level(ids: list[int]) -> None:
    assert "".join(pushed(Detokenizer(BYTE_LEVEL), ids)) == BYTE_LEVEL.decode(ids)


def byte_id(byte: int) -> int:
    id = PIECES.id_of(f"<0x{byte:02X}>")
    assert id is not None
    return id


@given(ids=ids_of(PIECES))
@example([byte_id(byte) for byte in "é".encode()] + [byte_id(0xFF)] + PIECES.encode("a"))
def test_any_ids_byte_fallback(ids: list[int]) -> None:
    """Here the library takes whole characters back when a broken byte follows; we do not."""
    text, reference = "".join(pushed(Detokenizer(PIECES), ids)), PIECES.decode(ids)
    if "\ufffd" not in reference:
        assert text == reference
    else:
        assert len(text) > 0
        words = [word for word in re.split("\ufffd+", reference) if word]
        at = 0
        for word in words:
            at = text.index(word, at) + len(word)


@given(ids=ids_of(BYTE_LEVEL), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_grouping_does_not_matter(ids: list[int], cuts: list[int]) -> None:
    one, many = Detokenizer(BYTE_LEVEL), Detokenizer(BYTE_LEVEL)
    borders = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    grouped = [many.push(ids[a:b]) for a, b in pairwise(borders)]
    assert "".join([*grouped, many.flush()]) == "".join(pushed(one, ids))


def test_noise_is_bounded() -> None:
    """A thousand bytes that are no text still come out, and nothing is kept for ever."""
    broken = BYTE_LEVEL.id_of("ÿ")  # stands for the byte FF
    assert broken is not None
    detokenizer = Detokenizer(BYTE_LEVEL)
    shown = sum(len(detokenizer.push([broken])) for _ in range(1000))
    assert 900 < shown <= 1000
    assert shown + len(detokenizer.flush()) == 1000


@KINDS
@given(data=st.data())
def test_after_a_flush_nothing_is_said_twice(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """A flush closes what was said; the rest is what it would be behind it."""
    first = data.draw(ids_of(tokenizer))
    rest = tokenizer.encode(data.draw(TEXT).replace("\ufffd", ""))
    detokenizer = Detokenizer(tokenizer)
    pushed(detokenizer, first)
    after = "".join(pushed(detokenizer, rest))
    assert "\ufffd" not in after
    assert after.strip() == tokenizer.decode(rest).strip()


def test_text_after_noise() -> None:
    broken = BYTE_LEVEL.id_of("ÿ")
    assert broken is not None
    ids = [broken] * 200 + BYTE_LEVEL.encode("Hello")
    assert "".join(pushed(Detokenizer(BYTE_LEVEL), ids)) == BYTE_LEVEL.decode(ids)


def test_special_tokens_are_left_out_unless_kept() -> None:
    end, tool = BYTE_LEVEL.id_of("<|end|>"), BYTE_LEVEL.id_of("<|tool|>")
    assert end is not None
    assert tool is not None
    ids = [*BYTE_LEVEL.encode("a é"), tool, *BYTE_LEVEL.encode(" b"), end]
    assert "".join(pushed(Detokenizer(BYTE_LEVEL), ids)) == "a é b"
    assert "".join(pushed(Detokenizer(BYTE_LEVEL, visible_ids={tool}), ids)) == "a é<|tool|> b"


def test_after_a_flush_words_keep_their_spaces() -> None:
    """Pieces that begin with ▁ lose it only at the very beginning."""
    broken, two = [byte_id(0xF0)], PIECES.encode("two")
    assert PIECES.decode(two) == "two"
    detokenizer = Detokenizer(PIECES)
    assert detokenizer.push(broken) + detokenizer.flush() == "\ufffd"
    assert detokenizer.push(two) == " two"


def test_flush_in_the_middle_of_a_character() -> None:
    ids = BYTE_LEVEL.encode("a\U0001fae0")
    assert len(ids) > 2
    detokenizer = Detokenizer(BYTE_LEVEL)
    assert detokenizer.push(ids[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
