"""Benchmarks: the scripts of all published figures, run by `continuo bench NAME [options]`.

A benchmark is a module with `add_options(parser)` and `run(options) -> Report`.
"""
