"""Settings that mean something to this vocabulary alone; the core carries them as text."""

import msgspec

from continuo.realtime.protocol.settings import GenerationSettings


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """Said back to the client in the response. `text` is what its text shall look like."""

    model: str = ""
    background: bool = False
    text: msgspec.Raw = msgspec.Raw(b'{"format":{"type":"text"}}')

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
