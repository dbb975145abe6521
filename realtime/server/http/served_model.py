"""Served names of the model."""

import msgspec

from continuo.realtime.errors import Refusal


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "continuo"
    max_model_len: int


class ServedModels:
    """The names under which the one model is served."""

    def __init__(self, models: list[ServedModel]) -> None:
        """`models`: the first one is used for requests that name no model."""
        self.models = models

    def find(self, name: str) -> ServedModel | None:
        return next((model for model in self.models if model.id == name), None)

    def resolve(self, requested: str | None) -> str:
        """Return the requested name, or the default name if it is None or empty. Raises Refusal if
        the name is not served."""
        if not requested:
            return self.models[0].id
        if self.find(requested) is None:
            raise self.unknown_model(requested)
        return requested

    def unknown_model(self, name: str) -> Refusal:
        """Return the Refusal for a model name that is not served."""
        served = ", ".join(f"'{model.id}'" for model in self.models)
        return Refusal(
            f"The model '{name[:200]}' does not exist here; this server has {served}.",
            code="model_not_found",
            param="model",
        )
