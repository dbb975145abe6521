"""Settings that only the Responses API has; `GenerationSettings` carries them as JSON text."""

import msgspec

from continuo.realtime.protocol.settings import GenerationSettings


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a request that its response repeats. `text` is the text configuration, as JSON."""

    model: str = ""
    background: bool = False
    text: msgspec.Raw = msgspec.Raw(b'{"format":{"type":"text"}}')

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
