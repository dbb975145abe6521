"""Text of models, users and other programs on a terminal, where control characters are commands.

A terminal that is sent a raw ESC or CSI sets its title, fills the clipboard or erases lines, and a
bidirectional override shows a text in another order than the one in which it is read.
"""

import re
import sys
from typing import TextIO

_COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u2028\u2029"  # separators of lines and paragraphs
    "\u202a-\u202e\u2066-\u2069"  # bidirectional embeddings, overrides and isolates
    "\u206a-\u206f\ufff9-\ufffb"  # deprecated format characters, interlinear annotations
    "\ud800-\udfff]"  # surrogates, which have no encoding
)


def escape_commands(text: str) -> str:
    r"""Return `text` with each character that commands a terminal as `\uXXXX`. Tabs, newlines and
    all that is shown stay; a JSON text stays the same JSON."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_line(text: str = "", file: TextIO | None = None) -> None:
    """Print escaped text and a newline to `file`, by default stdout, at once."""
    print(escape_commands(text), file=file or sys.stdout, flush=True)
