"""Settings that mean something to this vocabulary alone; the core carries them as text."""

import msgspec

from realtime.protocol.core import Settings


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    voice: str = "alloy"

    @classmethod
    def of(cls, settings: Settings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def text(self) -> str:
        return msgspec.json.encode(self).decode()
