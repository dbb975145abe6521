"""GET /v1/models: the names under which the model is served."""

import msgspec

from continuo.realtime.server.http.served_model import ServedModel


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[ServedModel]
