"""Settings that only the Responses API has; `GenerationSettings` carries them as JSON text."""

import msgspec

from continuo.realtime.protocol.settings import GenerationSettings


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of the request that the response repeats. `text` is its text configuration."""

    model: str = ""
    background: bool = False
    text: msgspec.Raw = msgspec.Raw(b'{"format":{"type":"text"}}')

    @classmethod
    def from_settings(cls, settings: GenerationSettings) -> "Extras":
        return msgspec.json.decode(settings.extras, type=cls)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()
