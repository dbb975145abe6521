"""Ids that the gateway issues: a prefix that names the kind of object, and 80 random bits."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable


def generate_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


def conversation_id_of(session_id: str) -> str:
    """Return the id of the one conversation of a session."""
    return "conv_" + session_id.removeprefix("sess_")


def deterministic_id_factory(source: str) -> Callable[[str], str]:
    """Return a function that makes an id from a prefix, as `generate_id` does, but derives it from
    `source`, the prefix and the number of earlier calls with this prefix instead of random bits. An
    object that is built again with the same calls gets the same ids."""
    counts = Counter[str]()

    def generate(prefix: str) -> str:
        counts[prefix] += 1
        return deterministic_id(source, prefix, counts[prefix])

    return generate


def deterministic_id(source: str, prefix: str, number: int) -> str:
    """Return the id that call `number` of a `deterministic_id_factory` makes, counted from 1."""
    digest = hashlib.blake2b(f"{source} {prefix} {number}".encode(), digest_size=10)
    return f"{prefix}_{digest.hexdigest()}"
