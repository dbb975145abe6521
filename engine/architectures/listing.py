"""Sizes of models for the commands that list them. The modules that compute them are imported when
they are needed, because each start of a server would load them too."""

from collections.abc import Mapping
from pathlib import Path

from continuo.engine.architectures.sizes import ModelSize


def read_model_size(folder: Path) -> ModelSize | None:
    """Return the size of the model in a folder in the Hugging Face layout, from its config.json and
    the names of its tensors, if it has any. Returns None if it is left to transformers. Raises
    ModelError, also for an architecture that is known to be refused."""
    from continuo.engine.architectures.shape_sizes import measure_folder  # noqa: PLC0415

    return measure_folder(folder)


def suggest_models() -> Mapping[str, ModelSize]:
    """Return the sizes of small models of the hub, the smallest first, by their hub id."""
    from continuo.engine.architectures.suggested import measure_suggested  # noqa: PLC0415

    return measure_suggested()
