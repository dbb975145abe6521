"""Name and version of the installed distribution."""

from importlib.metadata import version

DISTRIBUTION = "continuo-server"
VERSION = version(DISTRIBUTION)
