"""Options of `continuo serve`, `gateway` and `engine`: from the command line, else the environment,
else a TOML file.

`OPTIONS` lists all of them. Options that vLLM also has bear vLLM's names.
"""

import argparse
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, cast

import msgspec

from continuo.engine import BUNDLED_MODEL, parse_bytes
from continuo.realtime.errors import SetupError

OptionKind = Literal["text", "integer", "number", "bytes", "switch", "list"]
OptionValue = str | int | float | bool | list[str]
ENVIRONMENT_PREFIX = "CONTINUO_"
_OTHER_VARIABLES = {"CONTINUO_CONFIG", "CONTINUO_URL"}
"""Environment variables that belong to no option of `OPTIONS`."""


class Option(msgspec.Struct, frozen=True):
    kind: OptionKind
    usage: str
    """Name, and name of its value, if it has one: `port PORT`."""
    help: str
    group: str = ""
    choices: tuple[str, ...] = ()
    bounds: tuple[int, float] | None = None
    """Least and largest value of a number."""

    @property
    def name(self) -> str:
        return self.usage.partition(" ")[0]

    @property
    def metavar(self) -> str:
        return self.usage.partition(" ")[2]

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def environment_variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    def describe_default(self, command: str) -> str:
        """Return the default, which `help` has in brackets; for an engine alone, the last one."""
        found = re.findall(r"\(default: ([^()]*)\)", self.help)
        return found[-1 if command == "engine" else 0] if found else "off"


class SourcedValue(NamedTuple):
    """Value of an option, and its origin: the command line, an environment variable, or the
    TOML file."""

    value: OptionValue
    origin: str


_text = partial(Option, "text")
_integer = partial(Option, "integer")
_number = partial(Option, "number")
_bytes = partial(Option, "bytes")
_switch = partial(Option, "switch")
_list = partial(Option, "list")


def _group(group: str, *options: Option) -> Iterator[Option]:
    """Yield the options as those of a group."""
    for option in options:
        yield msgspec.structs.replace(option, group=group)


DTYPES = ("auto", "float32", "bfloat16", "float16")

OPTIONS: tuple[Option, ...] = (
    *_group(
        "model",
        _text(
            "model MODEL",
            f"folder in the Hugging Face layout, GGUF file, hub id, or '{BUNDLED_MODEL}', the "
            f"bundled model (default: {BUNDLED_MODEL})",
        ),
        _text("revision REV", "branch, tag or commit of a hub id (default: its main branch)"),
        _list(
            "served-model-name NAME",
            "name of the model in the API; may be repeated (default: --model)",
        ),
        _integer(
            "max-model-len TOKENS",
            "maximum tokens of a session (default: the limit of the model, or what the KV pool "
            "holds)",
        ),
        _text(
            "engine-url URL",
            "URL of a vLLM or llama-server that computes the model; --model names its tokenizer "
            "and chat template, and options of our own engine are refused (default: none, our own "
            "engine)",
        ),
        _text(
            "engine-api-key-file FILE",
            "file with the API key of the server at --engine-url (default: none)",
        ),
        _text("dtype", "dtype of weights and KV (default: auto)", choices=DTYPES),
        _text(
            "quantization",
            "format to which weights are quantized at load, on a CPU (default: that of the "
            "checkpoint)",
            choices=("int8", "int4"),
        ),
        _text("device", "device of the model (default: auto)", choices=("auto", "cpu", "cuda")),
    ),
    *_group(
        "engine",
        _integer("block-size TOKENS", "tokens in a KV page (default: 16)"),
        _integer(
            "num-gpu-blocks-override PAGES",
            "KV pages in the pool (default: as many as --kv-cache-memory-bytes holds)",
        ),
        _bytes(
            "kv-cache-memory-bytes SIZE",
            "memory of the KV pool, in bytes or as 2GiB, on a CPU taken as it is used (default: a "
            "share of the free device memory)",
        ),
        _number(
            "kv-offloading-size GIB",
            "GiB of host memory for KV of idle sessions that does not fit into the pool (default: "
            "0, such KV is recomputed)",
            bounds=(0, math.inf),
        ),
        _integer("max-num-seqs N", "maximum sequences in a step (default: 64)"),
        _number(
            "max-group-share SHARE",
            "maximum share of rows and KV pages for one tenant, 0 to 1 (default: 1)",
            bounds=(0, 1.0),
        ),
        _integer(
            "max-num-batched-tokens TOKENS",
            "maximum tokens in a step (default: 512 on a CPU, 8192 on a GPU)",
        ),
        _text(
            "speculative-config JSON",
            'speculative decoding: {"method": "ngram", "num_speculative_tokens": N} drafts from '
            "what the session has said before; prompt_lookup_min and prompt_lookup_max are the "
            "tokens of an n-gram (default: none)",
        ),
        _integer("threads N", "CPU threads of the model (default: all cores)"),
        _switch(
            "standby-engine",
            "keep a second engine process ready to load the model, to shorten the restart of an "
            "engine that dies (takes the memory of its imports)",
        ),
    ),
    *_group(
        "server",
        _text("host HOST", "address to listen on (default: 127.0.0.1)"),
        _integer(
            "port PORT", "port to listen on; 0: any free port (default: 8000)", bounds=(0, 65_535)
        ),
        _list(
            "api-key KEY",
            "key that clients must send; may be repeated. Other users of this machine can read it "
            "in the process list, but not from CONTINUO_API_KEY (default: none)",
        ),
        _text(
            "api-keys-file FILE",
            "file of keys with tenant, scopes and expiry, and of the limits of tenants; or a KEY "
            "= TENANT per line. Sessions and KV are shared only within a tenant. Keys of "
            "--api-key belong to the tenant 'default' (default: none)",
        ),
        _text(
            "root-path PATH",
            "path prefix under which a proxy serves this server, as /llm (default: none)",
        ),
        _text(
            "jwt-jwks-url URL",
            "URL of the public keys of JSON Web Tokens, which clients may send in place of a key; "
            "needs --jwt-audience (default: none)",
        ),
        _text("jwt-audience NAME", "audience (aud) that tokens must have (default: none)"),
        _text(
            "jwt-issuer NAME",
            "issuer (iss) that tokens must have (default: any with a key of --jwt-jwks-url)",
        ),
        _text("ssl-certfile FILE", "PEM certificate to serve TLS with (default: none, no TLS)"),
        _text(
            "ssl-keyfile FILE",
            "PEM key of the certificate (default: --ssl-certfile, which has both)",
        ),
        _switch("no-auth", "allow listening beyond loopback without a key (default: off)"),
        _list(
            "allowed-origins ORIGIN",
            "web origin whose pages may connect, as https://example.org; may be repeated "
            "(default: none; pages of this server and of loopback always may)",
        ),
    ),
    *_group(
        "engines",
        _list(
            "engine HOST:PORT",
            "address of an engine; may be repeated (default: none; engines announced in the Redis "
            "of --store are found automatically)",
        ),
        _text(
            "engine-cafile FILE",
            "PEM certificates of the authorities of engines with TLS, or of the engines "
            "themselves (default: none, links without TLS)",
        ),
    ),
    *_group(
        "host",
        _text("listen HOST:PORT", "address to listen on for gateways (default: 127.0.0.1:8100)"),
        _text("advertise HOST:PORT", "address announced to gateways (default: that of --listen)"),
        _text(
            "metrics-listen HOST:PORT",
            "address of this engine's /metrics and /health, without a key (default: none)",
        ),
    ),
    *_group(
        "link",
        _text(
            "secret-file FILE",
            "file with the secret that gateways and engines share, 16 bytes or more; required for "
            "engines beyond loopback (default: none)",
        ),
    ),
    *_group(
        "process",
        _number(
            "drain-grace-s SECONDS",
            "how long active responses may continue after SIGTERM (default: 20)",
            bounds=(0, 3600),
        ),
    ),
    *_group(
        "server",
        _integer(
            "requests-per-minute N",
            "responses that a tenant may create in a minute, on all endpoints of this process "
            "(default: 0, no limit)",
            bounds=(0, 1_000_000_000),
        ),
        _integer(
            "tokens-per-minute TOKENS",
            "tokens computed for a tenant in a minute: generated tokens, and prompt tokens that "
            "were not in KV (default: 0, no limit)",
            bounds=(0, 1_000_000_000),
        ),
        _integer(
            "operations-per-second N",
            "client events and HTTP requests of a tenant in a second, in the mean of ten; 0: no "
            "limit (default: 10000)",
            bounds=(0, 1_000_000_000),
        ),
        _bytes(
            "held-bytes-max SIZE",
            "memory of this process that holds input and output of a tenant which wait, and its "
            "idempotency keys, in bytes or as 2GiB; 0: no limit (default: 4GiB)",
        ),
        _bytes(
            "continuation-bytes-max SIZE",
            "memory of this process that holds responses which can be continued without the "
            "store, in bytes or as 2GiB (default: 320MiB)",
        ),
        _switch("no-web", "serve only the API, without the web page (default: off)"),
        _switch(
            "demo",
            "let the page kill the engine, to show that conversations survive; only from the "
            "address that is printed at the start (default: off)",
        ),
        _number(
            "temperature T",
            "temperature of sessions that set none (default: 0, greedy sampling)",
            bounds=(0, 2),
        ),
    ),
    *_group(
        "store",
        _text(
            "store URL",
            "store of the conversations: sqlite:///FILE, redis://HOST, rediss://HOST, "
            "redis+sentinel://HOST,HOST/SERVICE, or 'memory' (default: a SQLite file in your "
            "state folder). An engine alone is announced in a Redis (default: it is not "
            "announced)",
        ),
        _text(
            "durability",
            "what an acknowledged write survives. normal: a crash of the process; strict: also a "
            "crash of the machine (default: normal)",
            choices=("normal", "strict"),
        ),
        _number(
            "resume-window-s SECONDS",
            "how long a session is kept for a client that has disconnected (default: 900)",
            bounds=(0, 7 * 86_400),
        ),
        _number(
            "detach-grace-s SECONDS",
            "how long a response continues after its client has disconnected; then it is paused "
            "(default: 30)",
            bounds=(0, 7 * 86_400),
        ),
    ),
    *_group(
        "process",
        _text(
            "otlp-traces-endpoint URL",
            "URL of an OpenTelemetry collector for traces, as http://localhost:4318/v1/traces; "
            "needs the extra otel (default: none, no traces)",
        ),
        _text(
            "log-level",
            "minimum level of logged messages (default: warning)",
            choices=("debug", "info", "warning", "error"),
        ),
        _text(
            "log-format",
            "format of log lines on stderr: text, or a JSON object each (default: console)",
            choices=("console", "json"),
        ),
    ),
)

_BY_KEY = {option.key: option for option in OPTIONS}
GROUP_TITLES = {
    "model": "the model",
    "engine": "the engine",
    "host": "an engine alone",
    "server": "the server",
    "store": "what survives a dropped connection, a restart or a crash",
    "engines": "the engines of the gateway",
    "link": "links between gateways and engines",
    "process": "the process",
}
COMMAND_GROUPS: dict[str, tuple[str, ...]] = {
    "serve": ("model", "engine", "server", "store", "process"),
    "gateway": ("server", "store", "engines", "link", "process"),
    "engine": ("model", "engine", "host", "link", "process"),
    "store": (),
}
"""Groups of options that each command accepts."""
_EXTRA_OPTIONS = {"engine": ("ssl-certfile", "ssl-keyfile", "store"), "store": ("store",)}
_EXCLUDED_OPTIONS = {"engine": ("served-model-name",), "gateway": ("demo",)}


def add_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options of `command` to its parser. Unlike the command line, the environment and the
    TOML file may also contain options of other commands."""
    for group, title in GROUP_TITLES.items():
        section = parser.add_argument_group(title)
        for option in OPTIONS:
            if option.group == group and _accepts(command, option):
                _add(section.add_argument, option)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with options, named as here (default: none) [CONTINUO_CONFIG]",
    )


def _accepts(command: str, option: Option) -> bool:
    if option.name in _EXCLUDED_OPTIONS.get(command, ()):
        return False
    return option.group in COMMAND_GROUPS[command] or option.name in _EXTRA_OPTIONS.get(command, ())


def config_file_of(arguments: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """Return the path of the TOML file, or None if none is given."""
    file = arguments.get("config") or environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return str(file) if file else None


def trace_sources(
    arguments: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, SourcedValue]:
    """Return the options that are set, by key: from the command line (`arguments`), else the
    environment, else the TOML file. Raises SetupError."""
    file = config_file_of(arguments, environ)
    found: dict[str, SourcedValue] = {}
    if file:
        table = _from_file(Path(file))
        found |= {key: SourcedValue(value, file) for key, value in table.items()}
    for key, value in _from_environment(environ).items():
        found[key] = SourcedValue(value, _BY_KEY[key].environment_variable)
    for key, value in arguments.items():
        if key in _BY_KEY and value is not None:
            found[key] = SourcedValue(cast(OptionValue, value), f"--{_BY_KEY[key].name}")
    return found


def merge_sources(
    arguments: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, OptionValue]:
    """Return the values of `trace_sources`, without their origins. Raises SetupError."""
    return {key: value for key, (value, _) in trace_sources(arguments, environ).items()}


def find_unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin like those of options but belong to none."""
    known = {option.environment_variable for option in OPTIONS} | _OTHER_VARIABLES
    return sorted(
        name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and name not in known
    )


def accepted_options(command: str) -> list[Option]:
    return [option for option in OPTIONS if _accepts(command, option)]


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
        case "bytes":
            add(flag, type=_parse_bytes_argument, metavar=option.metavar, help=text)
        case "text":
            choices, metavar = option.choices or None, option.metavar or None
            add(flag, choices=choices, metavar=metavar, help=text)


def _parse_bytes_argument(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, OptionValue]:
    """Return the options that environment variables set, by key; lists are separated by commas."""
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
            raise SetupError(f"{path}: unknown option '{name}'")
        found[option.key] = _check(option, value, f"{path}: {name}")
    return found


def _parse(option: Option, text: str, where: str) -> OptionValue:
    match option.kind:
        case "text":
            return _check(option, text, where)
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "switch":
            if text.lower() not in ("1", "true", "yes", "0", "false", "no"):
                raise SetupError(f"{where}: '{text}' is neither true nor false")
            return text.lower() in ("1", "true", "yes")
        case "integer" | "number":
            try:
                return int(text) if option.kind == "integer" else float(text)
            except ValueError:
                raise SetupError(f"{where}: '{text}' is not a valid {option.kind}") from None
        case "bytes":
            return _check(option, text, where)


def _check(option: Option, value: object, where: str) -> OptionValue:
    types: dict[OptionKind, object] = {
        "text": str,
        "integer": int,
        "number": float,
        "bytes": int,
        "switch": bool,
        "list": list[str],
    }
    if option.kind == "list" and isinstance(value, str):
        value = [value]
    if option.kind == "bytes" and type(value) is not int:
        try:
            value = parse_bytes(str(value))
        except ValueError as error:
            raise SetupError(f"{where}: {error}") from None
    try:
        found = cast(OptionValue, msgspec.convert(value, cast(type, types[option.kind])))
    except msgspec.ValidationError:
        raise SetupError(f"{where}: {value!r} is not a valid {option.kind}") from None
    if option.choices and found not in option.choices:
        raise SetupError(f"{where}: {value!r} is not one of {', '.join(option.choices)}")
    return found


def check_bounds(options: Mapping[str, OptionValue]) -> None:
    """Raise SetupError for a number out of the bounds of its option."""
    for option in OPTIONS:
        if option.bounds is not None and option.key in options:
            (low, high), value = option.bounds, cast(float, options[option.key])
            if not low <= value <= high or value == math.inf:
                limits = f"{low} or more" if high == math.inf else f"{low} to {high:,}"
                raise SetupError(f"--{option.name} {value}: expected {limits}")


def load(arguments: argparse.Namespace) -> dict[str, OptionValue]:
    return merge_sources(vars(arguments), os.environ)
