"""A small terminal, for the text that is sent to one."""

from continuo.realtime.server.word_wrapper import count_columns


class Screen:
    """The lines of a terminal that begins another one where a line is full."""

    def __init__(self, sent: str, columns: int) -> None:
        self.cells: list[list[str]] = [[]]
        self.continued: list[bool] = [False]
        """Whether a line continues the word of the line before."""
        at = 0
        for char in sent:
            wide = count_columns(char)
            if char == "\n" or at + wide > columns:
                self.cells.append([])
                self.continued.append(char != "\n")
                at = 0
            line = self.cells[-1]
            if char == "\b":
                assert 0 < at < columns, "a backspace from where terminals differ"
                at -= 1
            elif wide:
                line[at : at + wide] = [char, *[""] * (wide - 1)]
                at += wide
            elif char != "\n":
                line[at - 1] += char

    def lines(self) -> list[str]:
        return ["".join(cells).rstrip(" ") for cells in self.cells]

    def words(self) -> list[str]:
        pairs = zip(self.lines(), self.continued, strict=True)
        return "".join(line if is_same else f"\n{line}" for line, is_same in pairs).split()
