"""Every number we publish has a script here: continuo bench NAME [--json FILE] [options of its own].

A bench is a module with `add_options(parser)` and `run(options) -> Report`.
"""
