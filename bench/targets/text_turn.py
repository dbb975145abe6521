"""Turns with targets that send and receive text."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from continuo.bench import random_checkpoints
from continuo.bench.targets.target import Ids, Turn

ToText = Callable[[Ids], str]
"""Writes the text of a user message for the ids that another target would receive."""

COMMON_WORDS = ("time", "year", "work", "day", "part", "place", "week", "point", "hand", "end")


def to_letters(ids: Ids) -> str:
    """Write text for a model of `random_checkpoints`. With the ids that its chat template adds to a
    turn, the text has exactly as many ids as `ids`."""
    return random_checkpoints.write_text(ids[random_checkpoints.TEMPLATE_IDS :])


def to_words(ids: Ids) -> str:
    """Write text for a model whose tokenizer is unknown: a word for each id, which most tokenizers
    make one token. Its chat template adds some more."""
    return " ".join(COMMON_WORDS[id % len(COMMON_WORDS)] for id in ids)


class ReceivedText:
    """The text of a turn, and the arrival of its pieces."""

    def __init__(self) -> None:
        self.start_s = time.perf_counter()
        self.text = ""
        self._pieces: list[tuple[int, float]] = []
        """Length of the text after each piece, and the piece's arrival."""

    def add(self, piece: str) -> None:
        if piece:
            self.text += piece
            self._pieces.append((len(self.text), time.perf_counter()))

    def finish(self, prompt: int | None, cached: int | None, tokens: int | None) -> Turn:
        """Make the record of the turn. `tokens`: of the output, if the target reports them; a piece
        has a part of them in proportion to its length."""
        if not self._pieces:
            raise RuntimeError("the response has no text")
        count = tokens or len(self._pieces)
        ends = [round(length * count / len(self.text)) for length, _ in self._pieces]
        return Turn(
            self.start_s, _spread(ends, self._pieces), self.text, prompt, cached, model_s=None
        )


def _spread(ends: Sequence[int], pieces: Sequence[tuple[int, float]]) -> list[float]:
    """Return the arrival of each token. `ends`: tokens until the end of each piece."""
    token_s: list[float] = []
    for end, (_, at_s) in zip(ends, pieces, strict=True):
        token_s += [at_s] * (end - len(token_s))
    return token_s


def message(role: str, text: str) -> dict[str, Any]:
    """Write an item of the Realtime and Responses APIs."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
