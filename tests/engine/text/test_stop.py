from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from continuo.engine.text import StopStringFilter, StopStringMatcher

# Few letters, so that stop strings overlap with the text and with each other.
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3)
PIECES = st.lists(st.text("ab\n", max_size=6), max_size=12)


def first_match(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The definition: text before the match that ends first (of several, the longest)."""
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
def test_holdback_is_the_definition(stops: list[str], pieces: list[str]) -> None:
    holdback = StopStringFilter(stops)
    shown = ""
    for piece in pieces:
        shown += holdback.push(piece)
    shown += holdback.flush()
    assert (shown, holdback.matched) == first_match("".join(pieces), stops)


@given(STOPS, PIECES)
def test_only_a_possible_beginning_is_held_back(stops: list[str], pieces: list[str]) -> None:
    holdback, text, shown = StopStringFilter(stops), "", ""
    for piece in pieces:
        text += piece
        shown += holdback.push(piece)
        if holdback.matched is not None:
            return
        held = text[len(shown) :]
        assert shown + held == text
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


class Letters:
    """A text source whose ids are characters, some of them silent (half a character)."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(chr(id) for id in ids if id)


@given(STOPS, st.text("ab\n", max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_watch_stops_at_the_id_that_completes_the_match(
    stops: list[str], text: str, silent: list[int]
) -> None:
    ids = [ord(letter) for letter in text]
    for at in silent:
        ids.insert(at, 0)
    watch, seen = StopStringMatcher(stops, Letters()), ""
    for id in ids:
        seen += chr(id) if id else ""
        expected = first_match(seen, stops)[1]
        assert watch.push([id]) == expected
        if expected is not None:
            return


def test_memory_is_bounded_by_the_longest_stop() -> None:
    holdback = StopStringFilter(["a" * 10])
    shown = ""
    for _ in range(100):
        shown += holdback.push("aaaaaaaaab")
        assert len(shown) % 10 == 0
    assert len(shown) == 1000


def test_a_stop_string_across_real_tokens() -> None:
    from continuo.engine.text.tokenizer.detokenizer import Detokenizer
    from continuo.engine.text.tokenizer.tokenizer import Tokenizer
    from tests.support.checkpoints import byte_level

    tokenizer = Tokenizer(byte_level(["<|end|>"]))
    ids = tokenizer.encode("Hello 😀 world")
    assert len(ids) > 4
    watch = StopStringMatcher(["😀 w"], Detokenizer(tokenizer))
    answers = [watch.push([id]) for id in ids]
    first = next(at for at, answer in enumerate(answers) if answer)
    assert tokenizer.decode(ids[: first + 1]).startswith("Hello 😀 w")
    assert "😀 w" not in tokenizer.decode(ids[:first])
