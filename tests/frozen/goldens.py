"""Digests of the golden transcripts of the OpenAI SDKs, with the sentences of errors masked.

goldens.txt has one line for each transcript: digest, SDK, name. A transcript is compared with those
of its SDK by its digest alone, so that flows of tests/clients may be renamed.
"""

import hashlib
import json
from pathlib import Path

from tests.frozen.masking import masked

FILE = Path(__file__).parent / "data" / "goldens.txt"
TRANSCRIPTS = Path(__file__).parents[1] / "clients" / "golden"


def _masked_line(line: str) -> str:
    """Mask a line: the number of the connection, the side (C or S), and a frame or another event.

    Lines of a client are not masked, and need not be JSON.
    """
    prefix, brace, rest = line.partition("{")
    if not brace or prefix.split()[1] == "C":
        return line
    return prefix + json.dumps(masked(json.loads(brace + rest)))


def _digest(transcript: Path) -> str:
    lines = [_masked_line(line) for line in transcript.read_text().split("\n")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def current() -> list[tuple[str, str, str]]:
    """Digest, SDK and name of each transcript."""
    files = sorted(TRANSCRIPTS.glob("*/*.txt"))
    return [(_digest(file), file.parent.name, file.stem) for file in files]


def frozen() -> list[tuple[str, str, str]]:
    rows = (line.split() for line in FILE.read_text().splitlines())
    return [(digest, sdk, name) for digest, sdk, name in rows]


def write() -> None:
    FILE.write_text("".join(f"{' '.join(row)}\n" for row in current()))
