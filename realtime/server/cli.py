"""The command line: `continuo serve | gateway | engine | chat | bench | models`."""

import argparse
import os
import sys
from collections.abc import Sequence

import uvloop

from continuo import __version__
from continuo.realtime.errors import SetupError
from continuo.realtime.server.config import options
from continuo.realtime.server.config.settings import (
    DEFAULT_PORT,
    make_engine_settings,
    make_gateway_settings,
    make_serve_settings,
)

_CHAT_URL = f"ws://127.0.0.1:{DEFAULT_PORT}"

_OPTION_SOURCES = (
    "An option may also come from the environment (the name in brackets; lists separated by "
    "commas) or from a TOML file (--config); the command line wins over the environment, which "
    "wins over the file."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = _build_parser()
    try:
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
            case "chat":
                return _run_chat(arguments)
            case "models":
                return _list_models()
            case _:
                parser.print_help()
                return 2
    except SetupError as error:
        print(f"continuo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="continuo",
        description="A self-hosted realtime conversation server.",
    )
    parser.add_argument("--version", action="version", version=f"continuo {__version__}")
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
    chat = commands.add_parser(
        "chat",
        help="chat with a server",
        description="Chat with a running server. Ctrl-C cancels a response, Ctrl-D quits. Lines "
        "piped into the command are sent one after the other, and only the responses are printed.",
    )
    chat.add_argument(
        "--url",
        default=os.environ.get("CONTINUO_URL", _CHAT_URL),
        help=f"URL of the server (default: {_CHAT_URL}) [CONTINUO_URL]",
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
        "--instructions", metavar="TEXT", help="instructions of the session (default: none)"
    )
    chat.add_argument(
        "--temperature", type=float, metavar="T", help="0 to 2 (default: that of the server)"
    )
    commands.add_parser("models", help="list the models that can be served without a download")
    commands.add_parser("bench", help="measure this machine", add_help=False)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_gateway import serve

    return uvloop.run(serve(make_serve_settings(options.load(arguments))))


def _serve_gateway(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_gateway import serve_gateway

    return uvloop.run(serve_gateway(make_gateway_settings(options.load(arguments))))


def _run_engine(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.process.run_engine import run_engine

    return uvloop.run(run_engine(make_engine_settings(options.load(arguments))))


def _run_chat(arguments: argparse.Namespace) -> int:
    from continuo.realtime.server.chat_client import ChatOptions, run_chat

    return uvloop.run(
        run_chat(
            ChatOptions(
                url=arguments.url,
                api_key=arguments.api_key,
                model=arguments.model,
                instructions=arguments.instructions,
                temperature=arguments.temperature,
            )
        )
    )


def _list_models() -> int:
    from continuo.realtime.server.list_models import print_models

    print_models()
    return 0


def _run_bench(arguments: list[str]) -> int:
    from continuo.bench import main as bench

    return bench.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
