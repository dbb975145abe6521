"""Numbers of bytes as text: in KiB, MiB and GiB, the units of all output and options."""

import re

_FACTORS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def format_bytes(count: float) -> str:
    """Write a number of bytes, as "1.5 GiB" or "320 MiB"."""
    unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if count >= _FACTORS[u]), "")
    number = count / _FACTORS[unit]
    return f"{number:,.{1 if unit and number < 100 else 0}f} {unit or 'bytes'}"


def parse_bytes(text: str) -> int:
    """Read a number of bytes, as "2147483648", "2GiB" or "1.5 GiB". Raises ValueError."""
    match = re.fullmatch(r"(\d+|\d+\.\d+(?= *[KMGT])) *([KMGT]iB)?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes, such as 2GiB, 512MiB or 1000000000")
    number, unit = match.groups()
    return int(float(number) * _FACTORS[unit]) if unit else int(number)
