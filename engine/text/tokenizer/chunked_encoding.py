"""Encode long texts chunk by chunk, without the interpreter lock.

    ├─ chunk ────────────────┤
    ├─ ids are kept ────┤ cut: the next chunk begins here
                        ├─ chunk ────────────────┤

Each chunk is encoded, and then cut at the beginning of a word: the ids before the cut are kept, and
the next chunk begins at the cut. The text after the cut is encoded again, because its words may
continue beyond the chunk. The pre-tokenizer splits the text at the cut, so the kept ids are those
of the whole text. The encoding of the chunk states the word of each token and the position of each
word in the text. A cut is verified by encoding the words around it again. If a chunk has no cut, a
longer one is tried; a text without a cut (one very long word, or a tokenizer without a
pre-tokenizer) is encoded whole.

`encode_batch` releases the interpreter lock; `encode` does not. The list of ids is built under the
lock, and only once their number is known to be within the limit.
"""

from typing import NamedTuple

import tokenizers

from continuo.engine.errors import TooLong

CHUNK_CHARS = 16 * 1024
"""Length of a chunk. Encoding it takes about 10 ms; building the list of its ids takes well under 1
ms."""
UNCUT_CHARS_MAX = 1024 * 1024
"""Longest text that is encoded although it cannot be cut. All its tokens are in memory at once
(about 130 bytes each, up to four per character) and are freed under the interpreter lock (20
ms)."""

_TAIL_CHARS = 32
"""Number of characters at the end of a chunk in which no cut is made, because words there may
differ from those of the whole text: the regexes of tokenizers look ahead a character or two beyond
a word."""
_TAIL_WORDS = 2
_CHECKED_WORDS = 6
"""Number of words on each side of a cut that are encoded again to verify the cut."""
_CUT_TRIES_MAX = 64
"""Maximum number of words whose beginnings are tried as cuts, from the end of a chunk leftwards,
before a longer chunk is tried."""


class _CutPoint(NamedTuple):
    """Position in an encoded text: the numbers of characters and tokens before it."""

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
        """`anchor`: one special token; text encoded after it is not treated as the beginning of a
        text. A text of more than `tokens_max` ids (None: no limit) is refused as soon as its number
        of ids is known to exceed that."""
        self._raw = raw
        self._anchor = anchor
        self.tokens_max = tokens_max
        self._chunk_chars = chunk_chars

    def encode(self, text: str, *, is_continuation: bool = False) -> list[int]:
        """Encode a text. Raises TooLong if it has more than `tokens_max` ids, or is long and cannot
        be cut."""
        ids: list[int] = []
        at, size = 0, self._chunk_chars
        while at + size < len(text):
            chunk = text[at : at + size]
            cut, chunk_ids = self._encode_chunk(
                chunk, len(text), is_continuation=is_continuation or at > 0
            )
            if cut is None:
                size *= 2
                if size > UNCUT_CHARS_MAX:
                    break
                continue
            ids += chunk_ids
            self._check_length(len(ids), len(text))
            at, size = at + cut.chars, self._chunk_chars
        return ids + self._encode_rest(
            text, at, len(ids), is_continuation=is_continuation or at > 0
        )

    def _encode_rest(self, text: str, at: int, before: int, *, is_continuation: bool) -> list[int]:
        rest = text[at:] if at else text
        if len(rest) > UNCUT_CHARS_MAX:
            raise TooLong(
                f"a text of {len(rest):,} characters cannot be cut into words by the model's "
                f"tokenizer; the limit for such text is {UNCUT_CHARS_MAX:,}"
            )
        prefix = self._anchor if is_continuation and self._anchor is not None else ""
        encoding = self._raw.encode_batch_fast([prefix + rest], add_special_tokens=False)[0]
        skipped = 1 if prefix else 0
        self._check_length(before + len(encoding) - skipped, len(text))
        return encoding.ids[skipped:]

    def _check_length(self, count: int, chars: int) -> None:
        if self.tokens_max is not None and count > self.tokens_max:
            raise TooLong(f"a text of {chars:,} characters is more than {self.tokens_max:,} tokens")

    def _encode_chunk(
        self, chunk: str, chars: int, *, is_continuation: bool
    ) -> tuple[_CutPoint | None, list[int]]:
        """Encode one chunk of a text of `chars` characters.

        Returns the last position of the chunk at which it can be cut without a change of ids, and
        the ids before it; (None, []) if there is no such position. Raises TooLong if the ids so far
        exceed the limit.
        """
        prefix = self._anchor if is_continuation and self._anchor is not None else ""
        encoding = self._raw.encode_batch([prefix + chunk], add_special_tokens=False)[0]
        skipped = 1 if prefix else 0
        # The text after a chunk may change its last ids, but does not halve their number.
        self._check_length(len(encoding) // 2, chars)
        last = encoding.token_to_word(len(encoding) - 1) if len(encoding) else None
        if not last:
            return None, []
        ids: list[int] = encoding.ids
        for word in range(
            last - _TAIL_WORDS, max(last - _TAIL_WORDS - _CUT_TRIES_MAX, skipped), -1
        ):
            start = _find_word_start(encoding, word)
            if start is None or start.chars - len(prefix) > len(chunk) - _TAIL_CHARS:
                continue
            if start.chars <= len(prefix):
                break
            left = _find_word_start(encoding, max(word - _CHECKED_WORDS, skipped))
            right = _find_word_start(encoding, min(word + _CHECKED_WORDS, last))
            if left is None or right is None or not left.chars < start.chars < right.chars:
                continue
            before = chunk[left.chars - len(prefix) : start.chars - len(prefix)]
            after = chunk[start.chars - len(prefix) : right.chars - len(prefix)]
            if (
                self._encode_span(before) + self._encode_span(after)
                == ids[left.tokens : right.tokens]
            ):
                cut = _CutPoint(start.chars - len(prefix), start.tokens)
                return cut, ids[skipped : start.tokens]
        return None, []

    def _encode_span(self, text: str) -> list[int]:
        prefix = self._anchor or ""
        encoding = self._raw.encode_batch_fast([prefix + text], add_special_tokens=False)[0]
        return encoding.ids[1 if prefix else 0 :]


def _find_word_start(encoding: tokenizers.Encoding, word: int) -> _CutPoint | None:
    """Find the character and the token at which a word begins. Returns None if no token belongs to
    the word."""
    tokens, chars = encoding.word_to_tokens(word), encoding.word_to_chars(word)
    return None if tokens is None or chars is None else _CutPoint(chars[0], tokens[0])
