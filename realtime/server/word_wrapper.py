"""Wrapping of streamed text at words, in a terminal. Pure."""

from unicodedata import category, east_asian_width

_TAB_COLUMNS = 8


class WordWrapper:
    """Breaks lines between words. Text is shown as it comes: where a word outgrows its line, it is
    erased with backspaces and continued on the next line.

    The last column stays empty, because a terminal keeps its cursor there in a way of its own. A
    word that is longer than a line is left to the terminal.
    """

    def __init__(self, columns: int | None) -> None:
        """`columns`: those of the terminal; None: text is not wrapped."""
        self._columns = columns
        self._column = 0
        """Columns of the current line that are taken."""
        self._spaces = ""
        """Spaces and tabs after the last word, which are shown only before a further one."""
        self._word: list[str] = []
        self._word_columns = 0

    def feed(self, text: str) -> str:
        """Return what the terminal is sent for further text."""
        return text if self._columns is None else "".join(map(self._add, text))

    def start_line(self) -> None:
        """Note that something else has begun a new line."""
        self._column = 0
        self._end_word("")

    def _add(self, char: str) -> str:
        if char == "\n":
            self.start_line()
            return char
        if char in " \t":
            self._end_word(self._spaces + char)
            return ""
        spaces, self._spaces = self._expand_spaces(), ""
        shown = self._make_room(spaces, count_columns(char)) + char
        self._word.append(char)
        return shown

    def _make_room(self, spaces: str, wide: int) -> str:
        """Return what is sent before a character of `wide` columns, with `spaces` before it."""
        assert self._columns is not None
        if self._column + len(spaces) + wide < self._columns:
            self._column += len(spaces) + wide
            self._word_columns += wide
            return spaces
        before, shown = self._column - self._word_columns, self._word_columns
        if before and shown + wide < self._columns:
            word = "".join(self._word)
            self._column = self._word_columns = shown + wide
            return "\b" * shown + " " * shown + "\b" * shown + "\n" + word
        if not shown:  # only spaces come before it
            self._column = self._word_columns = wide
            return ""
        is_wrapped = self._column + wide > self._columns  # by the terminal
        self._column = wide if is_wrapped else self._column + wide
        self._word_columns = self._column
        return ""

    def _expand_spaces(self) -> str:
        expanded = ""
        for space in self._spaces:
            to_stop = _TAB_COLUMNS - (self._column + len(expanded)) % _TAB_COLUMNS
            expanded += " " if space == " " else " " * to_stop
        return expanded

    def _end_word(self, spaces: str) -> None:
        self._spaces, self._word, self._word_columns = spaces, [], 0


def count_columns(char: str) -> int:
    """Return the columns that a character takes: none for one that combines with the one before."""
    if category(char) in ("Mn", "Me", "Cf", "Cc"):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
