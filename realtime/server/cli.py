"""The command line: `continuo serve | gateway | engine | config | store | tenant | chat | …`."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from continuo.engine import ConsoleFormatter, print_line, run_event_loop
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config import options
from continuo.realtime.server.config.settings import (
    DEFAULT_CHAT_URL,
    GatewaySettings,
    SettingsSource,
    make_engine_settings,
    make_gateway_settings,
    make_serve_settings,
)
from continuo.realtime.server.version import VERSION
from continuo.realtime.store import default_store_url

_OPTION_SOURCES = (
    "An option may also come from the environment (the name in brackets; lists separated by "
    "commas) or from a TOML file (--config); the command line wins over the environment, which "
    "wins over the file."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _build_parser()
    _escape_warnings()
    try:
        _check_platform()
        if argv[:1] == ["bench"]:
            return _run_bench(argv[1:])  # bench parses its own options, also --help
        arguments = parser.parse_args(argv)
        match arguments.command:
            case "serve":
                return _serve(arguments)
            case "gateway":
                return _serve_gateway(arguments)
            case "engine":
                return _run_engine(arguments)
            case "config":
                return _run_config(arguments)
            case "store":
                return _run_store(arguments)
            case "chat":
                return _run_chat(arguments)
            case "models":
                return _list_models(arguments)
            case "tenant":
                return _run_tenant(arguments)
            case _:
                parser.print_help()
                return 2
    except SetupError as error:
        print_line(f"continuo: {error}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _check_platform() -> None:
    if sys.platform == "win32":
        raise SetupError("Windows is not supported; install and run Continuo in WSL 2, as on Linux")


def _escape_warnings() -> None:
    """Escape the warnings that libraries log in a command that configures no log."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(ConsoleFormatter())


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="continuo",
        description="A self-hosted realtime conversation server.",
    )
    parser.add_argument("--version", action="version", version=f"continuo {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, brief, long in (
        ("serve", "start the server", "Start the server: a gateway with an engine of its own."),
        (
            "gateway",
            "start a gateway alone",
            "Start a gateway alone. Its engines run separately (continuo engine), on this machine "
            "or others; there may be several of each.",
        ),
        (
            "engine",
            "start an engine alone",
            "Start an engine alone, for gateways on this machine or others (continuo gateway).",
        ),
    ):
        options.add_options(
            commands.add_parser(name, help=brief, description=f"{long} {_OPTION_SOURCES}"), name
        )
    _add_config_parser(commands.add_parser)
    _add_store_parser(commands.add_parser)
    chat = commands.add_parser(
        "chat",
        help="chat with a server",
        description="Chat with a running server. Ctrl-C cancels a response, Ctrl-D quits. Lines "
        "piped into the command are sent one after the other, and only the responses are printed.",
    )
    chat.add_argument(
        "--url",
        default=os.environ.get("CONTINUO_URL", DEFAULT_CHAT_URL),
        help=f"URL of the server (default: {DEFAULT_CHAT_URL}) [CONTINUO_URL]",
    )
    chat.add_argument(
        "--api-key",
        default=os.environ.get("CONTINUO_API_KEY"),
        metavar="KEY",
        help="API key of the server (default: none) [CONTINUO_API_KEY]",
    )
    chat.add_argument(
        "--model",
        metavar="NAME",
        help="model to chat with (default: the first that the server serves)",
    )
    chat.add_argument(
        "--session",
        metavar="ID",
        help="session to come back to, as printed at the end of a chat (default: a new one)",
    )
    chat.add_argument(
        "--instructions", metavar="TEXT", help="instructions of the session (default: none)"
    )
    chat.add_argument(
        "--temperature", type=float, metavar="T", help="0 to 2 (default: that of the server)"
    )
    _add_tenant_commands(commands.add_parser("tenant", help="show or delete what a tenant has"))
    models = commands.add_parser(
        "models",
        help="list models, what each needs in memory, and the families that run",
        description="List the models that can be served without a download and small ones of the "
        "Hugging Face hub, with the memory of their weights by format and of their KV, and whether "
        "this machine has that much available; then the families that run, and by what.",
    )
    models.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="list this model alone: a folder, a GGUF file, or a hub id that has been downloaded",
    )
    commands.add_parser("bench", help="measure this machine", add_help=False)
    return parser


def _add_config_parser(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    config = add_parser(
        "config", help="check or print the configuration", description="Examine a configuration."
    )
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, brief in (
        ("check", "check what would keep a server from starting or working well"),
        ("print", "print every option with its value and its origin"),
    ):
        of_action = actions.add_parser(action, help=brief)
        servers = of_action.add_subparsers(dest="server", metavar="COMMAND", required=True)
        for server in ("serve", "gateway", "engine"):
            parser = servers.add_parser(
                server, help=f"of continuo {server}", description=_OPTION_SOURCES
            )
            options.add_options(parser, server)


def _add_store_parser(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    store = add_parser(
        "store", help="back up, restore or examine a store", description="Administer a store."
    )
    actions = store.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, brief in (
        ("backup", "write all sessions and stored responses to a file; servers may run"),
        ("restore", "add the sessions and stored responses of a backup to a store"),
        ("vacuum", "remove what has expired, and return unused space to the system"),
        ("stats", "count what the store holds"),
    ):
        parser = actions.add_parser(action, help=brief, description=_OPTION_SOURCES)
        if action in ("backup", "restore"):
            parser.add_argument("file", type=Path, metavar="FILE", help="the backup")
        if action == "stats":
            parser.add_argument("--json", action="store_true", help="print JSON (default: off)")
        options.add_options(parser, "store")


def _add_tenant_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    usage = actions.add_parser("usage", help="what a tenant has used, and what the store holds")
    usage.add_argument("--json", action="store_true", help="print JSON")
    delete = actions.add_parser("delete", help="delete everything of a tenant")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    for action in (usage, delete):
        action.add_argument("tenant", metavar="TENANT")
        action.add_argument(
            "--store",
            metavar="URL",
            help="store of the gateways, as in `continuo serve` [CONTINUO_STORE]",
        )
        action.add_argument("--config", metavar="FILE", help="TOML file with options")


def _settings_source(
    arguments: argparse.Namespace,
    make: Callable[[Mapping[str, options.OptionValue]], GatewaySettings],
) -> SettingsSource:
    """Return a source that reads the options again, in case the environment, the TOML file or a
    file that they name has changed."""
    config_file = options.config_file_of(vars(arguments), os.environ)
    return SettingsSource(lambda: make(options.load(arguments)), config_file)


def _serve(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_gateway import serve

    return run_event_loop(serve(_settings_source(arguments, make_serve_settings)))


def _serve_gateway(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_gateway import serve_gateway

    return run_event_loop(serve_gateway(_settings_source(arguments, make_gateway_settings)))


def _run_engine(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_engine import run_engine

    return run_event_loop(run_engine(make_engine_settings(options.load(arguments))))


def _run_config(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.config.print_config import print_config
    from continuo.realtime.server.process.check_config import check_config

    if arguments.action == "print":
        print_config(arguments.server, vars(arguments), os.environ)
        return 0
    return run_event_loop(check_config(arguments.server, options.load(arguments), os.environ))


def _run_store(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.store_commands import StoreCommand, run_store_command
    from continuo.realtime.store import default_store_url

    command = StoreCommand(
        arguments.action,
        str(options.load(arguments).get("store") or default_store_url()),
        getattr(arguments, "file", None),
        getattr(arguments, "json", False),
    )
    return run_event_loop(run_store_command(command))


def _run_chat(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.chat_client import ChatOptions, run_chat

    return run_event_loop(
        run_chat(
            ChatOptions(
                url=arguments.url,
                api_key=arguments.api_key,
                model=arguments.model,
                instructions=arguments.instructions,
                temperature=arguments.temperature,
                session=arguments.session,
            )
        )
    )


def _list_models(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.list_models import print_models

    print_models(arguments.models)
    return 0


def _run_tenant(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server import tenant_commands

    url = str(options.load(arguments).get("store", default_store_url()))
    if arguments.action == "usage":
        run_event_loop(tenant_commands.print_usage(url, arguments.tenant, as_json=arguments.json))
    else:
        run_event_loop(tenant_commands.delete(url, arguments.tenant, is_confirmed=arguments.yes))
    return 0


def _run_bench(arguments: list[str]) -> int:
    from continuo.bench import main as bench

    return bench.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
