"""Ids of long texts, made piece by piece, without the interpreter lock.

    ├─ piece ────────────────┼─ piece ──────────────┼─ rest ─┤
                        ├────┤ encoded, thrown away: its words may go on

A piece ends where the pre-tokenizer cuts, so the ids of the pieces are the ids of the whole text.
The cut is taken from the encoding of the piece itself (which word a token belongs to, and where in
the text that word begins), far enough from its end, and is then tried on the words around it. A
text without such a cut (one very long word, or a tokenizer without a pre-tokenizer) is encoded
whole.

`encode_batch` releases the interpreter lock and `encode` does not. A list of the ids is made under
the lock, and only when their number is known to be allowed.
"""

from typing import NamedTuple

import tokenizers

from continuo.engine.errors import TooLong

CHUNK_CHARS = 16 * 1024
"""About 10 ms of work; the ids of a piece are made a list in well under 1 ms."""
UNCUT_CHARS_MAX = 1024 * 1024
"""Characters of text that cannot be cut. Its tokens are in memory at once (about 130 bytes each, up
to four a character), and are freed under the interpreter lock (20 ms)."""

_TAIL_CHARS = 32
"""Characters before the end of a piece: words that end here may be different in the whole text. The
regexes of tokenizers look ahead a character or two beyond a word."""
_TAIL_WORDS = 2
_CHECKED_WORDS = 6
"""On each side of a cut that is tried."""
_CUT_TRIES_MAX = 64
"""Words looked at, from the end of a piece to the left, before a longer piece is taken."""


class _CutPoint(NamedTuple):
    chars: int
    tokens: int


class ChunkedEncoder:
    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        anchor: str | None = None,
        tokens_max: int | None = None,
        *,
        chunk_chars: int = CHUNK_CHARS,
    ) -> None:
        """`anchor`: one special token; behind it a text has no beginning of its own. A text of more
        than `tokens_max` ids is refused as soon as that is known."""
        self._raw = raw
        self._anchor = anchor
        self._tokens_max = tokens_max
        self._chunk_chars = chunk_chars

    def encode(self, text: str, *, is_continuation: bool = False) -> list[int]:
        """Raises TooLong."""
        ids: list[int] = []
        at, size = 0, self._chunk_chars
        while at + size < len(text):
            piece = text[at : at + size]
            cut, made = self._encode_chunk(piece, is_continuation or at > 0, len(text))
            if cut is None:
                size *= 2
                if size > UNCUT_CHARS_MAX:
                    break
                continue
            ids += made
            self._check_length(len(ids), len(text))
            at, size = at + cut.chars, self._chunk_chars
        return ids + self._encode_rest(text, at, is_continuation or at > 0, len(ids))

    def _encode_rest(self, text: str, at: int, inside: bool, before: int) -> list[int]:
        rest = text[at:] if at else text
        if len(rest) > UNCUT_CHARS_MAX:
            raise TooLong(
                f"a text of {len(rest):,} characters cannot be cut into words by the model's "
                f"tokenizer; it takes {UNCUT_CHARS_MAX:,} at once"
            )
        lead = self._anchor if inside and self._anchor is not None else ""
        found = self._raw.encode_batch_fast([lead + rest], add_special_tokens=False)[0]
        skipped = 1 if lead else 0
        self._check_length(before + len(found) - skipped, len(text))
        return found.ids[skipped:]

    def _check_length(self, count: int, chars: int) -> None:
        if self._tokens_max is not None and count > self._tokens_max:
            raise TooLong(
                f"a text of {chars:,} characters is more than {self._tokens_max:,} tokens"
            )

    def _encode_chunk(
        self, piece: str, inside: bool, chars: int
    ) -> tuple[_CutPoint | None, list[int]]:
        """Where to cut a piece of a text of so many characters, and the ids before that; None: the
        piece has no sure cut. Raises TooLong."""
        lead = self._anchor if inside and self._anchor is not None else ""
        found = self._raw.encode_batch([lead + piece], add_special_tokens=False)[0]
        skipped = 1 if lead else 0
        # What follows a piece may change its last ids, but does not halve their number.
        self._check_length(len(found) // 2, chars)
        last = found.token_to_word(len(found) - 1) if len(found) else None
        if not last:
            return None, []
        ids: list[int] = found.ids
        for word in range(
            last - _TAIL_WORDS, max(last - _TAIL_WORDS - _CUT_TRIES_MAX, skipped), -1
        ):
            begins = _find_word_start(found, word)
            if begins is None or begins.chars - len(lead) > len(piece) - _TAIL_CHARS:
                continue
            if begins.chars <= len(lead):
                break
            left = _find_word_start(found, max(word - _CHECKED_WORDS, skipped))
            right = _find_word_start(found, min(word + _CHECKED_WORDS, last))
            if left is None or right is None or not left.chars < begins.chars < right.chars:
                continue
            before = piece[left.chars - len(lead) : begins.chars - len(lead)]
            behind = piece[begins.chars - len(lead) : right.chars - len(lead)]
            if (
                self._encode_span(before) + self._encode_span(behind)
                == ids[left.tokens : right.tokens]
            ):
                cut = _CutPoint(begins.chars - len(lead), begins.tokens)
                return cut, ids[skipped : begins.tokens]
        return None, []

    def _encode_span(self, text: str) -> list[int]:
        lead = self._anchor or ""
        found = self._raw.encode_batch_fast([lead + text], add_special_tokens=False)[0]
        return found.ids[1 if lead else 0 :]


def _find_word_start(found: tokenizers.Encoding, word: int) -> _CutPoint | None:
    """The place where a word begins. Returns None if no token belongs to it."""
    tokens, chars = found.word_to_tokens(word), found.word_to_chars(word)
    return None if tokens is None or chars is None else _CutPoint(chars[0], tokens[0])
