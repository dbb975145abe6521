"""Write docs/configuration.md, the reference of the options, from their declarations.

With --check, only exit with 1 if the file differs.
"""

import argparse
import math
import re
import sys
from pathlib import Path

from continuo.realtime.server.config.options import GROUP_TITLES, OPTIONS, Option, accepted_options

PATH = Path(__file__).parents[1] / "docs" / "configuration.md"
COMMANDS = ("serve", "gateway", "engine")
HEAD = """\
# Configuration

<!-- Written by `python -m tools.write_configuration` from realtime/server/config/options.py. -->

An option comes from the command line (`--max-num-seqs 128`), else from the environment
(`CONTINUO_MAX_NUM_SEQS=128`; lists separated by commas), else from the TOML file that `--config`
or `CONTINUO_CONFIG` names:

```toml
model = "Qwen/Qwen3-0.6B"
max-num-seqs = 128
allowed-origins = ["https://app.example.org"]
```

`continuo config print serve` prints every option with its value and origin, and
`continuo config check serve` what would keep a server from starting or from working well
([operations](operations.md#one-process-or-several)). Keys, limits of tenants and their defaults,
allowed origins and certificates are [reloaded](keys.md#reload-and-rotate) while the server runs;
other options take effect at the next start.

The file of `--api-keys-file` is described in [keys](keys.md). *serve* starts a
gateway with an engine of its own, *gateway* and *engine* one of them alone.
"""


def write() -> str:
    """Return the text of the file."""
    groups = dict.fromkeys(option.group for name in COMMANDS for option in accepted_options(name))
    order = [group for group in GROUP_TITLES if group in groups]
    return "\n".join([HEAD, *map(_write_group, order)])


def _write_group(group: str) -> str:
    title = GROUP_TITLES[group]
    rows = [_write_row(option) for option in OPTIONS if option.group == group]
    return "\n".join(
        [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| option | of | default | values | meaning |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _write_row(option: Option) -> str:
    name = f"`--{option.name} {option.metavar}".rstrip() + "`"
    commands = [name for name in COMMANDS if option in accepted_options(name)]
    meaning = re.sub(r" \(default: [^()]*\)", "", option.help)
    default = option.describe_default(commands[0])
    values = ", ".join(f"`{choice}`" for choice in option.choices)
    if option.bounds:
        low, high = option.bounds
        values = f"{low} or more" if high == math.inf else f"{low:,} to {high:,.0f}"
    return f"| {name} | {', '.join(commands)} | {default} | {values} | {_escape(meaning)} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = write()
    if not parser.parse_args().check:
        PATH.write_text(text, "utf-8")
    elif PATH.read_text("utf-8") != text:
        sys.exit(f"{PATH} is out of date: run python -m tools.write_configuration")


if __name__ == "__main__":
    main()
