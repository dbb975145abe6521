"""Benchmarks: the script of every published number. continuo bench NAME [--json FILE] [options]

A benchmark is a module with `add_options(parser)` and `run(options) -> Report`.
"""
