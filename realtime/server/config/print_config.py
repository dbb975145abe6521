"""`continuo config print`: every option of a command, with its value and its origin."""

from collections.abc import Mapping

from continuo.engine import print_line
from continuo.realtime.server.config.options import (
    Option,
    OptionValue,
    SourcedValue,
    accepted_options,
    find_unknown_variables,
    trace_sources,
)
from continuo.realtime.store import redact_password

SECRET_OPTIONS = ("api-key",)
"""Options whose values are never printed."""


def print_config(command: str, arguments: Mapping[str, object], environ: Mapping[str, str]) -> None:
    """Print a line for each option of `continuo COMMAND`: name, origin, value. Raises
    SetupError."""
    found = trace_sources(arguments, environ)
    rows = [
        (option.name, *_describe(option, found.get(option.key), command))
        for option in accepted_options(command)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, origin, value in rows:
        print_line(f"{name:<{widths[0]}}  {origin:<{widths[1]}}  {value}")
    for name in find_unknown_variables(environ):
        print_line(f"{name} is set, but belongs to no option")


def _describe(option: Option, found: SourcedValue | None, command: str) -> tuple[str, str]:
    """Return the origin of an option and its value, as text."""
    if found is None:
        return "default", option.describe_default(command)
    if option.name in SECRET_OPTIONS:
        count = len(found.value) if isinstance(found.value, list) else 1
        return found.origin, f"({count} hidden)"
    return found.origin, _format(found.value)


def _format(value: OptionValue) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case list():
            return ", ".join(value)
        case _:
            return redact_password(str(value))
