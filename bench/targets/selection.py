"""Targets by name: the options that select them, and their start and end.

A name is NAME[/MODE][:DTYPE], for example `engine`, `engine/no-session`, `websocket`,
`llama.cpp:q8_0`. A mode or dtype that is left out is the target's best, and that of --dtype.
"""

import argparse
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from continuo.bench import random_checkpoints
from continuo.bench.competitors.checkpoint import count_parameters, count_step_bytes
from continuo.bench.processes import run_server
from continuo.bench.targets import engine_target, http_target, realtime_target
from continuo.bench.targets.competitor_target import (
    COMPETITORS,
    CompetitorError,
    CompetitorTarget,
)
from continuo.bench.targets.engine_target import EngineTarget, run_engine
from continuo.bench.targets.http_target import HttpTarget
from continuo.bench.targets.realtime_target import RealtimeTarget
from continuo.bench.targets.target import Target
from continuo.bench.targets.text_turn import to_letters, to_words
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.config import CPU_FP32_PARAMETERS_MAX

PAGE_SIZE = 16
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
QUANTIZED_BYTES = {"int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
"""Bytes of a weight that this engine quantizes at load: blocks of 32 have a scale of 2 bytes."""
SERVED_NAME = "bench"
"""Name of the model at our own servers."""
TEXT_MARGIN = 64
"""Ids that a session has besides those of its turns: its instructions, and rounding to pages."""
LENGTH_MARGIN = 1.25
"""Longest context of the engine, as a multiple of what is needed: a server drops the oldest items
of a conversation before it is full."""
MODES = {
    "engine": engine_target.MODES,
    "websocket": realtime_target.MODES,
    "responses": ("",),
    "chat": ("",),
    "server": ("",),
    **{name: competitor.modes for name, competitor in COMPETITORS.items()},
}
"""Modes of each target, the best first."""
HELP = {
    "engine": "this engine, by its Python client, also :int8, :int4",
    "websocket": "continuo serve, by the Realtime API",
    "responses": "continuo serve, by the Responses API over HTTP",
    "chat": "continuo serve, by chat completions",
    "server": "the server at --base-url, by --api",
    "llama.cpp": "llama-cpp-python in .venv-peers, also :q8_0, :q4_0, :q4_k_m",
    "transformers": "its generate(), and continuous batching",
}


class Room(NamedTuple):
    """Sessions that a target must hold at once, and ids of each."""

    sessions: int
    context: int


class TargetName(NamedTuple):
    text: str
    name: str
    mode: str
    dtype: str | None


def add_target_options(
    parser: argparse.ArgumentParser, targets: tuple[str, ...], *, runs: int = 5
) -> None:
    """Add the options of every workload that measures targets, `targets` by default."""
    group = parser.add_argument_group(
        "what to measure", "A TARGET is NAME[/MODE][:DTYPE]:\n\n" + _list_targets()
    )
    group.add_argument(
        "--targets",
        nargs="+",
        type=parse_name,
        metavar="TARGET",
        help=f"measured in alternation (default: {' '.join(targets)}; with --base-url: server)",
    )
    group.add_argument(
        "--model",
        default="S",
        help=f"{', '.join(random_checkpoints.MODEL_SIZES)}, or a checkpoint folder; not of "
        "--base-url (default: %(default)s)",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        help="of the weights; auto: what the engine chooses for the model (default: %(default)s)",
    )
    group.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="of engine and competitors (default: one for each processor)",
    )
    group.add_argument("--base-url", metavar="URL", help="of a running server, such as http://h/v1")
    group.add_argument(
        "--api",
        choices=("realtime", *http_target.APIS),
        default="chat",
        help="of the server at --base-url (default: %(default)s)",
    )
    group.add_argument("--api-key", default="", metavar="KEY", help="of the server (default: none)")
    group.add_argument(
        "--served-model", default="", metavar="NAME", help="(default: the first that it lists)"
    )
    group.add_argument(
        "--extra-body",
        type=_parse_object,
        default={"ignore_eos": True},
        metavar="JSON",
        help="fields added to each HTTP request; '{}' for a server that refuses unknown ones, "
        "whose responses then end by themselves (default: '{\"ignore_eos\": true}')",
    )
    group.add_argument(
        "--runs",
        type=int,
        default=runs,
        metavar="N",
        help="of each target, in alternation (default: %(default)s)",
    )
    group.add_argument(
        "--limit-s",
        type=float,
        default=600.0,
        metavar="N",
        help="seconds after which no turn of a run begins (default: %(default)s)",
    )
    parser.set_defaults(default_targets=targets)


def _list_targets() -> str:
    lines: list[str] = []
    for name, text in HELP.items():
        lines.append(f"  {name:12}  {text}")
        if len(MODES[name]) > 1:
            lines.append(f"  {'':12}  modes: {', '.join(MODES[name])}")
    return "\n".join(lines)


def parse_name(text: str) -> TargetName:
    """Parse NAME[/MODE][:DTYPE]. Raises ArgumentTypeError."""
    found = re.fullmatch(r"([^/:]+)(?:/([^:]+))?(?::(\w+))?", text)
    name = found[1] if found else text
    if found is None or name not in MODES:
        raise argparse.ArgumentTypeError(f"{text}: not one of {', '.join(MODES)}")
    mode = found[2] or MODES[name][0]
    if mode not in MODES[name]:
        modes = ", ".join(MODES[name])
        raise argparse.ArgumentTypeError(f"{text}: the mode is not one of {modes}")
    return TargetName(text, name, mode, found[3])


def is_competitor(text: str) -> bool:
    """Return whether the target with this name is not of Continuo's and not a server's."""
    return parse_name(text).name in COMPETITORS


def selected_names(options: argparse.Namespace) -> list[TargetName]:
    """Return the names of the targets to measure."""
    if options.targets:
        return options.targets
    if options.base_url:
        return [parse_name("server")]
    return [parse_name(text) for text in options.default_targets]


def resolve_checkpoint(name: str) -> Path:
    return (
        random_checkpoints.ensure_checkpoint(name)
        if name in random_checkpoints.MODEL_SIZES
        else Path(name)
    )


@contextlib.asynccontextmanager
async def run_targets(
    options: argparse.Namespace, room: Room
) -> AsyncIterator[tuple[list[Target], list[str]]]:
    """Start the selected targets with this much room, and stop them at the end. Yields those that
    could be started, and notes about all."""
    names = selected_names(options)
    async with contextlib.AsyncExitStack() as stack:
        launcher = _Launcher(options, room, stack)
        targets, notes = list[Target](), list[str]()
        for name in names:
            try:
                target = await stack.enter_async_context(await launcher.make(name))
            except CompetitorError as error:
                notes.append(f"{name.text}: {error}")
                continue
            targets.append(target)
            if target.note:
                notes.append(f"{target.name}: {target.note}")
        if not targets:
            raise SystemExit("\n".join(notes))
        yield targets, notes


class _Launcher:
    """Makes targets. Those of this engine with the same dtype share a process, as do those that
    `continuo serve` serves."""

    def __init__(
        self, options: argparse.Namespace, room: Room, stack: contextlib.AsyncExitStack
    ) -> None:
        self._options = options
        self._room = room
        self._stack = stack
        self._engines: dict[str, EngineClient] = {}
        """Engine processes by dtype."""
        self._servers: dict[str, str] = {}
        """URL of the WebSocket of each `continuo serve`, by dtype."""
        self._to_text = to_letters if options.model in random_checkpoints.MODEL_SIZES else to_words

    async def make(self, name: TargetName) -> Target:
        options = self._options
        if name.name == "server":
            return self._make_server(name)
        folder = resolve_checkpoint(options.model)
        dtype = name.dtype or resolve_dtype(folder, options.dtype)
        if name.name == "engine":
            client = await self._ensure_engine(folder, dtype)
            return EngineTarget(name.text, name.mode, client, count_engine_bytes(folder, dtype))
        if name.name in COMPETITORS:
            competitor = COMPETITORS[name.name]
            return CompetitorTarget(
                name.text, competitor, name.mode, folder, dtype, options.threads
            )
        url = await self._ensure_server(folder, dtype)
        if name.name == "websocket":
            return RealtimeTarget(name.text, url, name.mode, self._to_text)
        base_url = url.replace("ws://", "http://").removesuffix("/realtime")
        return HttpTarget(
            name.text,
            base_url,
            name.name,
            self._to_text,
            extra_body={"ignore_eos": True},
            model=SERVED_NAME,
        )

    def _make_server(self, name: TargetName) -> Target:
        options = self._options
        if options.base_url is None:
            raise SystemExit("the target `server` needs --base-url")
        base_url = options.base_url.rstrip("/")
        access = {"api_key": options.api_key, "model": options.served_model}
        if options.api == "realtime":
            url = re.sub("^http", "ws", base_url) + "/realtime"
            return RealtimeTarget(name.text, url, "streaming", to_words, **access)
        return HttpTarget(
            name.text, base_url, options.api, to_words, extra_body=options.extra_body, **access
        )

    def _engine_settings(self, dtype: str) -> dict[str, Any]:
        """Return options of the engine, with twice the pages that all sessions need, so that none
        are evicted."""
        context = int(LENGTH_MARGIN * (self._room.context + TEXT_MARGIN))
        weights = {"quantization": dtype} if dtype in QUANTIZED_BYTES else {"dtype": dtype}
        return {
            **weights,
            "threads": self._options.threads,
            "max_model_len": context,
            "num_gpu_blocks_override": 2 * self._room.sessions * -(-context // PAGE_SIZE),
        }

    async def _ensure_engine(self, folder: Path, dtype: str) -> EngineClient:
        if dtype not in self._engines:
            self._engines[dtype] = await self._stack.enter_async_context(
                run_engine(folder, **self._engine_settings(dtype))
            )
        return self._engines[dtype]

    async def _ensure_server(self, folder: Path, dtype: str) -> str:
        if dtype not in self._servers:
            self._servers[dtype] = await self._stack.enter_async_context(
                run_server(folder, served_model_name=SERVED_NAME, **self._engine_settings(dtype))
            )
        return self._servers[dtype]


def count_engine_bytes(folder: Path, dtype: str) -> float | None:
    """Return the bytes of weights that a step of this engine reads, if that is known."""
    each = (DTYPE_BYTES | QUANTIZED_BYTES).get(dtype)
    return None if each is None else count_step_bytes(folder, each)


def resolve_dtype(folder: Path, dtype: str) -> str:
    """Return `dtype`, or for auto the one that the engine uses for this model on a CPU."""
    if dtype != "auto":
        return dtype
    return "float32" if count_parameters(folder) <= CPU_FP32_PARAMETERS_MAX else "bfloat16"


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value
