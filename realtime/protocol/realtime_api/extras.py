"""Settings that mean something to this vocabulary alone; the core carries them as text."""

import msgspec

from continuo.realtime.protocol.settings import Settings

INTERRUPTED = "response.interrupted"
"""Ours: an event that only a session hears of that includes it."""


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    voice: str = "alloy"
    include: tuple[str, ...] = ()
    """Of what may be included, what we know."""

    @classmethod
    def of(cls, settings: Settings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def text(self) -> str:
        return msgspec.json.encode(self).decode()
