"""Ids we give out: a prefix that says what it is, and 80 random bits."""

import hashlib
import secrets
from collections.abc import Callable


def generate_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


def conversation_id_of(session_id: str) -> str:
    """The id of the one conversation of a session."""
    return "conv_" + session_id.removeprefix("sess_")


def deterministic_id_factory(source: str) -> Callable[[str], str]:
    """Names for the parts of something: the same ones when it is made again."""
    made = 0

    def name(prefix: str) -> str:
        nonlocal made
        made += 1
        digest = hashlib.blake2b(f"{source} {prefix} {made}".encode(), digest_size=10)
        return f"{prefix}_{digest.hexdigest()}"

    return name
