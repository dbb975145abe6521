"""The names of the one model that is served."""

import msgspec

from continuo.realtime.errors import Refusal


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "continuo"
    max_model_len: int


class ServedModels:
    def __init__(self, models: list[ServedModel]) -> None:
        """The first is the one of clients that name none."""
        self.models = models

    def find(self, name: str) -> ServedModel | None:
        return next((model for model in self.models if model.id == name), None)

    def resolve(self, requested: str | None) -> str:
        """Raises Refusal for a model that is not served."""
        if not requested:
            return self.models[0].id
        if self.find(requested) is None:
            raise self.unknown_model(requested)
        return requested

    def unknown_model(self, name: str) -> Refusal:
        served = ", ".join(f"'{model.id}'" for model in self.models)
        return Refusal(
            f"The model '{name[:200]}' does not exist here; this server has {served}.",
            code="model_not_found",
            param="model",
        )
