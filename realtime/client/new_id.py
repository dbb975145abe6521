"""Ids that the client chooses: of events, which makes them idempotent, and of items."""

import secrets
from typing import Literal


def new_id(kind: Literal["event", "item"]) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
