"""Settings that only the Realtime API has; `GenerationSettings` carries them as JSON text."""

import msgspec

from continuo.realtime.protocol.settings import GenerationSettings

INCLUDE_INTERRUPTED = "response.interrupted"
INCLUDE_CONTINUITY = "session.continuity"
INCLUDE_REASONING = "response.reasoning_text"
INCLUDABLE = (INCLUDE_INTERRUPTED, INCLUDE_REASONING, INCLUDE_CONTINUITY)
"""Extensions: events that are sent only to sessions whose `include` lists them."""


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    voice: str = "alloy"
    include: tuple[str, ...] = ()
    """Values of the session's `include` that this server knows."""

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
