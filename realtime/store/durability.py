"""Durability: which crashes an acknowledged write survives.

normal   a crash of the process; a crash of the machine (or of Redis) may lose the last second
strict   a crash of the machine (or of Redis) too: a write is on disk before it is acknowledged
"""

from typing import Literal

Durability = Literal["normal", "strict"]
