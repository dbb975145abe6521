"""Ids we give out: a prefix that says what it is, and 80 random bits."""

import secrets


def fresh(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"
