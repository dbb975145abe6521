"""Version of the installed distribution."""

from importlib.metadata import version

VERSION = version("continuo-server")
