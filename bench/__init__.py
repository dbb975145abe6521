"""Every number we publish has a script here: continuo bench NAME [--json FILE] [its own options].

A bench is a module with `add_options(parser)` and `run(options) -> Report`.
"""
