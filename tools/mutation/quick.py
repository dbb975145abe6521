"""A pytest plugin: state machines look for a failure, and do not shrink what they have found."""

from hypothesis import Phase, settings

settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutation")
