"""Ids to text, a few at a time: never half a character, never a late correction."""

from collections.abc import Collection, Sequence

from tokenizers.decoders import DecodeStream

from continuo.engine.text.tokenizer.tokenizer import Tokenizer

_HELD_IDS_MAX = 64
"""Ids held back at most. A character has at most four bytes, so more is noise, not text."""


class Detokenizer:
    """`push` returns the text that is certain so far, `flush` the rest. Special tokens are left
    out, but those in `keep` are written as they are spelt (markers of tool calls)."""

    def __init__(self, tokenizer: Tokenizer, visible_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._visible_ids = frozenset(visible_ids)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []
        """Ids given to the stream since it last wrote."""

    def push(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._push_id(ids[0])
        return "".join([self._push_id(id) for id in ids])

    def flush(self) -> str:
        """What was held back; unfinished characters become U+FFFD. More may be pushed after."""
        return self._flush_held()

    def _push_id(self, id: int) -> str:
        if id in self._visible_ids:
            return self._flush_held() + self._tokenizer.added_tokens[id]
        if id in self._tokenizer.special_ids:
            return ""
        self._held.append(id)
        try:
            text = self._stream.step(self._tokenizer.raw, id)
        except Exception:
            # The stream refuses when later ids change the text of earlier ones (a broken byte
            # after whole characters). What is written stays; the rest is decoded by itself.
            return self._flush_held()
        if text is None:
            return self._flush_held() if len(self._held) >= _HELD_IDS_MAX else ""
        self._held = []
        return text

    def _flush_held(self) -> str:
        if not self._held:
            return ""
        text = self._tokenizer.decode(self._held)
        self._held = []
        # What follows is no beginning (which loses a space in SentencePiece-like tokenizers), so
        # the new stream starts behind some text; not this one, which may end in half a character.
        self._stream = DecodeStream(self._tokenizer.encode("a"), skip_special_tokens=True)
        return text
