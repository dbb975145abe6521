"""The type of a meaning that a user's message can have."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Intent:
    """User messages of one meaning, and the answers to them.

    `asks` and `replies` are patterns (see grammar.py) of the user's messages and the model's
    answers; `accept` is a regular expression found in every right answer.
    """

    asks: tuple[str, ...]
    replies: tuple[str, ...]
    accept: str
