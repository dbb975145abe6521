"""Options of `continuo serve`, `gateway` and `engine`: from the command line, else the environment,
else a TOML file.

One table says them all. Names follow vLLM's where it has the option.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import msgspec

from continuo.realtime.errors import SetupError

OptionKind = Literal["text", "integer", "number", "switch", "list"]
OptionValue = str | int | float | bool | list[str]
ENVIRONMENT_PREFIX = "CONTINUO_"


class Option(msgspec.Struct, frozen=True):
    name: str
    kind: OptionKind
    group: str
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def environment_variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()


DTYPES = ("auto", "float32", "bfloat16", "float16")

OPTIONS: tuple[Option, ...] = (
    Option(
        "model", "text", "model", "folder in the Hugging Face layout, hub id, or 'demo'", "MODEL"
    ),
    Option("revision", "text", "model", "branch, tag or commit of a hub id", "REV"),
    Option(
        "served-model-name",
        "list",
        "model",
        "name clients call it by; may be given again (default: --model)",
        "NAME",
    ),
    Option("max-model-len", "integer", "model", "tokens in one session at most", "TOKENS"),
    Option("dtype", "text", "model", "of weights and KV", choices=DTYPES),
    Option("device", "text", "model", "where it runs", choices=("auto", "cpu", "cuda")),
    Option("block-size", "integer", "engine", "tokens in one KV page", "TOKENS"),
    Option("num-gpu-blocks-override", "integer", "engine", "KV pages in the pool", "PAGES"),
    Option("kv-cache-memory-bytes", "integer", "engine", "bytes for the KV pool", "BYTES"),
    Option(
        "kv-offloading-size",
        "number",
        "engine",
        "GiB of host memory for KV of idle sessions that the pool has no room for (default: 0, it "
        "is computed again)",
        "GIB",
    ),
    Option("max-num-seqs", "integer", "engine", "sequences in one step at most", "N"),
    Option("max-num-batched-tokens", "integer", "engine", "tokens in one step at most", "TOKENS"),
    Option("threads", "integer", "engine", "CPU threads of the model (default: all cores)", "N"),
    Option("host", "text", "server", "address to listen on (default: 127.0.0.1)", "HOST"),
    Option("port", "integer", "server", "0 takes a free one (default: 8000)", "PORT"),
    Option(
        "api-key",
        "list",
        "server",
        "key clients must show; may be given again. Others on this machine can read it in the "
        "process list: CONTINUO_API_KEY keeps it to yourself",
        "KEY",
    ),
    Option(
        "api-keys-file",
        "text",
        "server",
        "one KEY = TENANT a line; sessions and KV are shared only within a tenant "
        "(keys of --api-key: the tenant 'default')",
        "FILE",
    ),
    Option("ssl-certfile", "text", "server", "PEM certificate: serve wss:// and https://", "FILE"),
    Option("ssl-keyfile", "text", "server", "its key, where it is not in the same file", "FILE"),
    Option("no-auth", "switch", "server", "listen beyond loopback without any key"),
    Option(
        "allowed-origins",
        "list",
        "server",
        "web origin whose pages may connect, as https://example.org; may be given again "
        "(pages from this machine always may)",
        "ORIGIN",
    ),
    Option(
        "engine",
        "list",
        "engines",
        "an engine, as HOST:PORT; may be given again. Those announced in a Redis of --store are "
        "found by themselves",
        "HOST:PORT",
    ),
    Option(
        "engine-cafile",
        "text",
        "engines",
        "PEM certificates of who signs for engines with TLS, or of the engines themselves",
        "FILE",
    ),
    Option(
        "listen",
        "text",
        "host",
        "where gateways connect (default: 127.0.0.1:8100)",
        "HOST:PORT",
    ),
    Option(
        "advertise",
        "text",
        "host",
        "the address gateways are told, where it is not that of --listen",
        "HOST:PORT",
    ),
    Option(
        "secret-file",
        "text",
        "link",
        "what gateways and engines must both know, 16 bytes or more; engines beyond loopback "
        "need one",
        "FILE",
    ),
    Option(
        "drain-grace-s",
        "number",
        "process",
        "how long answers in flight may take after SIGTERM (default: 20)",
        "SECONDS",
    ),
    Option(
        "requests-per-minute",
        "integer",
        "server",
        "responses a tenant may begin in a minute, on all endpoints of this process (default: 0, "
        "no limit)",
        "N",
    ),
    Option(
        "tokens-per-minute",
        "integer",
        "server",
        "tokens computed for a tenant in a minute: generated ones, and those of prompts that were "
        "not in KV (default: 0, no limit)",
        "TOKENS",
    ),
    Option("no-web", "switch", "server", "serve no page, the API alone"),
    Option(
        "temperature",
        "number",
        "server",
        "of sessions that set none (default: 0, always the likeliest token)",
        "T",
    ),
    Option(
        "store",
        "text",
        "store",
        "where conversations are kept: sqlite:///FILE, redis://HOST, rediss://HOST, "
        "redis+sentinel://HOST,HOST/SERVICE, or 'memory' (default: a file in your state folder). "
        "Engines that run apart are announced in a Redis",
        "URL",
    ),
    Option(
        "durability",
        "text",
        "store",
        "what an acknowledgement means. normal: a crash of the process loses nothing; strict: nor "
        "does one of the machine (default: normal)",
        choices=("normal", "strict"),
    ),
    Option(
        "resume-window-s",
        "number",
        "store",
        "how long a session waits for a client that has dropped (default: 900)",
        "SECONDS",
    ),
    Option(
        "detach-grace-s",
        "number",
        "store",
        "how long an answer is made for a client that has dropped; then it pauses (default: 30)",
        "SECONDS",
    ),
    Option(
        "log-level",
        "text",
        "process",
        "how much is logged (default: warning)",
        choices=("debug", "info", "warning", "error"),
    ),
)

_BY_KEY = {option.key: option for option in OPTIONS}
_GROUPS = {
    "model": "the model",
    "engine": "its engine",
    "host": "the engine by itself",
    "server": "the server",
    "store": "what survives a dropped connection, a restart or a crash",
    "engines": "its engines",
    "link": "between gateways and engines",
    "process": "the process",
}
COMMAND_GROUPS: dict[str, tuple[str, ...]] = {
    "serve": ("model", "engine", "server", "store", "process"),
    "gateway": ("server", "store", "engines", "link", "process"),
    "engine": ("model", "engine", "host", "link", "process"),
}
"""Which groups of options each takes."""
_EXTRA_OPTIONS = {"engine": ("ssl-certfile", "ssl-keyfile", "store")}
_EXCLUDED_OPTIONS = {"engine": ("served-model-name",)}


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Those of the command; the environment and a file may hold options of others too."""
    for group, title in _GROUPS.items():
        section = parser.add_argument_group(title)
        for option in OPTIONS:
            if option.group == group and _accepts(command, option):
                _add(section.add_argument, option)
    parser.add_argument("--config", metavar="FILE", help="TOML file with options, named as here")


def _accepts(command: str, option: Option) -> bool:
    if option.name in _EXCLUDED_OPTIONS.get(command, ()):
        return False
    return option.group in COMMAND_GROUPS[command] or option.name in _EXTRA_OPTIONS.get(command, ())


def merge_sources(
    arguments: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, OptionValue]:
    """The options that are set anywhere. Raises SetupError."""
    file = arguments.get("config") or environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    found = _from_file(Path(str(file))) if file else {}
    found |= _from_environment(environ)
    found |= {
        key: cast(OptionValue, value)
        for key, value in arguments.items()
        if key in _BY_KEY and value is not None
    }
    return found


def _add(add: Callable[..., object], option: Option) -> None:
    flag, text = f"--{option.name}", f"{option.help} [{option.environment_variable}]"
    match option.kind:
        case "switch":
            add(flag, action="store_true", default=None, help=text)
        case "list":
            add(flag, action="append", metavar=option.metavar, help=text)
        case "integer":
            add(flag, type=int, metavar=option.metavar, help=text)
        case "number":
            add(flag, type=float, metavar=option.metavar, help=text)
        case "text":
            add(
                flag,
                choices=option.choices or None,
                metavar=option.metavar or None,
                help=text,
            )


def _from_environment(environ: Mapping[str, str]) -> dict[str, OptionValue]:
    """Lists are separated by commas."""
    found: dict[str, OptionValue] = {}
    for option in OPTIONS:
        text = environ.get(option.environment_variable)
        if text is not None and text != "":
            found[option.key] = _parse(option, text, option.environment_variable)
    return found


def _from_file(path: Path) -> dict[str, OptionValue]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"{path}: not TOML: {error}") from None
    found: dict[str, OptionValue] = {}
    for name, value in table.items():
        option = _BY_KEY.get(name.replace("-", "_"))
        if option is None:
            raise SetupError(f"{path}: there is no option '{name}'")
        found[option.key] = _check(option, value, f"{path}: {name}")
    return found


def _parse(option: Option, text: str, where: str) -> OptionValue:
    match option.kind:
        case "text":
            return _check(option, text, where)
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "switch":
            words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
            if text.lower() not in words:
                raise SetupError(f"{where}: '{text}' is neither true nor false")
            return words[text.lower()]
        case "integer" | "number":
            try:
                return int(text) if option.kind == "integer" else float(text)
            except ValueError:
                raise SetupError(f"{where}: '{text}' is no {option.kind}") from None


def _check(option: Option, value: object, where: str) -> OptionValue:
    wanted: dict[OptionKind, object] = {
        "text": str,
        "integer": int,
        "number": float,
        "switch": bool,
        "list": list[str],
    }
    if option.kind == "list" and isinstance(value, str):
        value = [value]
    try:
        found = cast(OptionValue, msgspec.convert(value, cast(type, wanted[option.kind])))
    except msgspec.ValidationError:
        raise SetupError(f"{where}: {value!r} is no {option.kind}") from None
    if option.choices and found not in option.choices:
        raise SetupError(f"{where}: {value!r} is none of {', '.join(option.choices)}")
    return found


def load(arguments: argparse.Namespace) -> dict[str, OptionValue]:
    return merge_sources(vars(arguments), os.environ)


__all__: Sequence[str] = (
    "OPTIONS",
    "Option",
    "OptionValue",
    "add_options",
    "load",
    "merge_sources",
)
