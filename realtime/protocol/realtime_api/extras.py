"""Settings that mean something to this vocabulary alone; the core carries them as text."""

import msgspec

from continuo.realtime.protocol.settings import GenerationSettings

INCLUDE_INTERRUPTED = "response.interrupted"
"""Ours: an event that only a session hears of that includes it."""


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    voice: str = "alloy"
    include: tuple[str, ...] = ()
    """Of what may be included, what we know."""

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
