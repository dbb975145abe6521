"""Bytes of single tokens, for reports of log-probabilities.

A token may be part of a character, or begin with a space that decoding it alone would lose, so its
bytes are read from the vocabulary instead of decoded.
"""

import re
from functools import cached_property

from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
"""Character that stands for a space in vocabularies of SentencePiece."""


class TokenBytes:
    """Bytes of the tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def of(self, id: int) -> bytes:
        """Return the bytes of a token; those of a special token spell its name. Returns b"" for an
        id that no token has."""
        added = self._tokenizer.added_tokens.get(id)
        if added is not None:
            return added.encode()
        token = self._tokenizer.raw.id_to_token(id)
        if token is None:
            return b""
        if self._is_byte_level and all(char in _BYTE_OF_CHAR for char in token):
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        if match := _BYTE_FALLBACK.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(_SPACE, " ").encode()

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self._tokenizer.raw.decoder
        return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet: a printable character stands for
    itself, and the other bytes have the characters from U+0100 on, in their order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + n): byte for n, byte in enumerate(others)
    }


_BYTE_OF_CHAR = _byte_level_alphabet()
