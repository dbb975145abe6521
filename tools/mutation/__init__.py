"""Mutation testing of the engine core: bugs are planted one at a time, and the tests must catch
each. `python -m tools.mutation --help`."""
