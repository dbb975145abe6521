"""Pytest plugin: hypothesis searches for a failure, but does not shrink the failing example."""

from hypothesis import Phase, settings

settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutation")
