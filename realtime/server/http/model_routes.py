"""GET /v1/models: the served names of the model."""

import msgspec

from continuo.realtime.server.http.served_model import ServedModel


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ServedModel]
