"""A pytest plugin: state machines search for a failure, but do not shrink it."""

from hypothesis import Phase, settings

settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutation")
