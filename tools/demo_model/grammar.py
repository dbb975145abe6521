"""Expansion of patterns to text such as a person might type, independent of skills and values.

A pattern is lower-case text in which ``[a|b|]`` is a choice (nesting allowed) and ``{name}`` the
slot of a value. A ``Style`` is one person's way of typing, the same for a whole conversation.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"(\{[a-z_0-9]+\})")
_SHORT = {
    "you": "u",
    "are": "r",
    "your": "ur",
    "please": "pls",
    "what's": "whats",
    "who's": "whos",
    "where's": "wheres",
    "I'm": "im",
    "don't": "dont",
    "can't": "cant",
    "thanks": "thx",
    "favourite": "fav",
    "because": "cuz",
    "and": "n",
    "people": "ppl",
    "something": "smth",
    "going": "goin",
    "though": "tho",
    "really": "rly",
    "about": "abt",
    "with": "w",
    "what": "wat",
    "have": "hav",
    "favorite": "fave",
    "again": "agn",
    "okay": "k",
    "very": "vry",
}


@dataclass(frozen=True)
class Style:
    """Way of typing of one person.

    `lower`: no capital letters; `bare`: no final punctuation mark; `short` and `typo`: probability
    that a word with a usual abbreviation is abbreviated, and that a longer word is misspelt.
    """

    lower: bool = False
    bare: bool = False
    short: float = 0.0
    typo: float = 0.0
    shout: bool = False

    def value(self, text: str) -> str:
        """Return `text`, a value within a sentence (such as a name), as a person with this style
        types it."""
        if self.shout:
            return text.upper()
        return text.lower() if self.lower else text


PLAIN = Style()


def draw_style(rng: random.Random) -> Style:
    """Draw a style: tidy in half of all cases, else at random without capitals, without final
    punctuation, with abbreviations or with misspellings."""
    share = rng.random()
    if share < 0.45:
        return PLAIN
    if share < 0.465:
        return Style(shout=True, bare=rng.random() < 0.5)
    return Style(
        lower=rng.random() < 0.7,
        bare=rng.random() < 0.7,
        short=rng.choice((0.0, 0.0, 0.5)),
        typo=rng.choice((0.0, 0.0, 0.06, 0.12)),
    )


def expand(rng: random.Random, pattern: str) -> str:
    """Resolve every choice of a pattern, innermost first."""
    while "[" in pattern:
        pattern = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), pattern)
    pattern = " ".join(pattern.split())
    return re.sub(r" +([,.!?:])", r"\1", pattern).lstrip(",.!?: ")


def capital(text: str) -> str:
    """Upper-case the first character only."""
    return text[:1].upper() + text[1:]


_OPENERS = (
    "[hi|hello|hey|hi there|good morning],",
    "[ok|okay|thanks|thank you|great|good|nice|cool|fine|alright|right|perfect|wonderful],",
    "[so|well|now|um|hmm|oh|and|but|then|please|also|again],",
    "[no|no wait|sorry|actually|no I meant|I meant|wait|no, stop|I said],",
    "[hi|hello|thanks|great|ok|sorry|good|wow|cool|nice one|that is nice|very good][!|.]",
    "[I have a question|one more thing|next question|another thing|listen|a request][:|.]",
    "[let us try something else|I want to try something|now something different][:|.]",
)


def opened(rng: random.Random, pattern: str, share: float = 0.15) -> str:
    """Put a random opener such as "hi," before the pattern, with probability `share`."""
    if rng.random() >= share:
        return pattern
    opener = expand(rng, rng.choice(_OPENERS))
    return f"{opener} {capital(pattern) if opener[-1] in '.!' else pattern}"


_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEAR = {
    letter: row[max(0, at - 1) : at] + row[at + 1 : at + 2]
    for row in _ROWS
    for at, letter in enumerate(row)
}
"""The letters beside each letter on a keyboard."""


def _misspell(rng: random.Random, word: str) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(5)
    if kind == 3:
        near = _NEAR.get(word[at].lower())
        return word[:at] + (rng.choice(near) if near else word[at]) + word[at + 1 :]
    if kind == 4:
        return word[1] + word[0] + word[2:] if rng.random() < 0.4 else word[:-1]
    if kind == 0:
        return word[:at] + word[at + 1 :]
    if kind == 1:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return word[:at] + word[at] + word[at:]


def _roughen(rng: random.Random, style: Style, text: str) -> str:
    words = text.split(" ")
    for index, word in enumerate(words):
        if word in _SHORT and rng.random() < style.short:
            words[index] = _SHORT[word]
        elif len(word) > 3 and word.isalpha() and rng.random() < style.typo:
            words[index] = _misspell(rng, word)
    return " ".join(words)


def typed(
    rng: random.Random, style: Style, pattern: str, values: Mapping[str, str] | None = None
) -> str:
    """Expand a pattern to the text that a person of this style types.

    The `values` of the slots are inserted exactly as given.
    """
    text = expand(rng, pattern)
    parts = _SLOT.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _roughen(rng, style, parts[index])
        if style.lower:
            parts[index] = parts[index].lower()
        elif style.shout:
            parts[index] = parts[index].upper()
    if not style.lower:
        parts[0] = capital(parts[0])
    text = "".join(parts)
    if style.bare:
        text = text.rstrip(".!?")
        if style.lower and rng.random() < 0.5:
            text = text.replace(",", "").replace("'", "")
        if style.lower and rng.random() < 0.04:
            text += rng.choice(
                (" :)", " lol", " pls", "??", "!!", "...", " haha", " ;)", " plz", " ty")
            )
    elif text[-1].isalnum() or text[-1] == "}":
        text += rng.choice((".", ".", "!", ""))
    return text.format(**(values or {}))


def reply(rng: random.Random, pattern: str, values: Mapping[str, str] | None = None) -> str:
    """Expand a pattern to an answer of the model.

    The first letter is upper-case unless the answer begins with a slot's value.
    """
    return capital(expand(rng, pattern)).format(**(values or {}))
