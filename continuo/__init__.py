"""Continuo: a self-hosted realtime conversation server on its own LLM engine.

`continuo.engine` is the engine with its async client, `continuo.realtime` the server, and
`continuo.bench` the benchmarks. The folders `engine`, `realtime` and `bench` of the repository are
linked here, so that an installation occupies one import name.
"""

from importlib.metadata import version

__version__ = version("continuo-server")
