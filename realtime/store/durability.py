"""Durability: the crashes that an acknowledged write survives.

normal   a crash of the process; a crash of the machine (or of Redis) may lose the last second
strict   those too: a write is on the disk before it is acknowledged
"""

from typing import Literal

Durability = Literal["normal", "strict"]
