"""Mutation check: bugs planted in engine/cache and engine/schedule, one at a time; the tests must
catch each. `python -m tools.mutation --help`."""
