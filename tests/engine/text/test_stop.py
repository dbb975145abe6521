"""Tests of stop strings: the filter of text, and the matcher of ids."""

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from continuo.engine.text import StopStringFilter, StopStringMatcher

# Few letters, so that stop strings overlap with the text and with each other.
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)
PIECES = st.lists(st.text("ab\n", max_size=6), max_size=12)


def first_match(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the match that ends first (of several, the longest), and the match."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(STOPS, PIECES)
@example(["b", "ab"], ["ab"])
@example(["ab", "b"], ["aab"])
@example(["aab", "ab"], ["xa", "a", "b"])
def test_stop_filter_matches_its_definition(stops: list[str], pieces: list[str]) -> None:
    stop_filter = StopStringFilter(stops)
    emitted = ""
    for piece in pieces:
        emitted += stop_filter.push(piece)
    emitted += stop_filter.flush()
    assert (emitted, stop_filter.matched) == first_match("".join(pieces), stops)


@given(STOPS, PIECES)
def test_only_a_possible_prefix_of_a_stop_string_is_held_back(
    stops: list[str], pieces: list[str]
) -> None:
    stop_filter, text, emitted = StopStringFilter(stops), "", ""
    for piece in pieces:
        text += piece
        emitted += stop_filter.push(piece)
        if stop_filter.matched is not None:
            return
        held = text[len(emitted) :]
        assert emitted + held == text
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


class LetterDecoder:
    """Detokenizer whose ids are characters; id 0 is silent, like half a character."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(chr(id) for id in ids if id)


@given(STOPS, st.text("ab\n", max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_stop_matcher_matches_at_the_id_that_completes_the_match(
    stops: list[str], text: str, positions_of_silent_ids: list[int]
) -> None:
    ids = [ord(letter) for letter in text]
    for at in positions_of_silent_ids:
        ids.insert(at, 0)
    matcher, seen = StopStringMatcher(stops, LetterDecoder()), ""
    for id in ids:
        seen += chr(id) if id else ""
        expected = first_match(seen, stops)[1]
        assert matcher.push([id]) == expected
        if expected is not None:
            return


def test_held_back_text_is_bounded_by_the_longest_stop_string() -> None:
    stop_filter = StopStringFilter(["a" * 10])
    emitted = ""
    for _ in range(100):
        emitted += stop_filter.push("aaaaaaaaab")
        assert len(emitted) % 10 == 0
    assert len(emitted) == 1000


def test_stop_string_across_real_tokens_is_matched() -> None:
    from continuo.engine.text.tokenizer.detokenizer import Detokenizer
    from continuo.engine.text.tokenizer.tokenizer import Tokenizer
    from tests.support.checkpoints import byte_level_tokenizer

    tokenizer = Tokenizer(byte_level_tokenizer(["<|end|>"]))
    ids = tokenizer.encode("Hello 😀 world")
    assert len(ids) > 4
    matcher = StopStringMatcher(["😀 w"], Detokenizer(tokenizer))
    matches = [matcher.push([id]) for id in ids]
    first = next(at for at, match in enumerate(matches) if match)
    assert tokenizer.decode(ids[: first + 1]).startswith("Hello 😀 w")
    assert "😀 w" not in tokenizer.decode(ids[:first])
