"""An agent loop over the Responses API: each turn sends the output of a tool call and requests the
next response.

One agent continues from the previous response (`previous_response_id`), another resends its whole
history. Measured: bytes sent, tokens computed, and milliseconds to the first delta, medians over
early and late turns.
"""

import argparse
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop
import websockets

from continuo.bench.processes import run_server
from continuo.bench.report import Report, ReportRow, median
from continuo.bench.targets.selection import resolve_checkpoint

WORDS = "the quick brown fox jumps over the lazy dog and "
SAMPLING = {"temperature": 0, "max_output_tokens": 8, "ignore_eos": True}
STRATEGIES = ("continue", "resend")
TOOLS = [
    {
        "type": "function",
        "name": f"tool_{n}",
        "description": "What it does is said here at some length, as agents do. " * 3,
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for n in range(4)
]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="S", help="S, M, or a checkpoint folder (default: %(default)s)"
    )
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="of a running server that has the Responses API over WebSocket (default: start one)",
    )
    parser.add_argument(
        "--turns", type=int, default=40, help="turns of each agent (default: %(default)s)"
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        default=16_384,
        help="longest context of the server, in tokens (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    async with _serve(options) as address:
        await _run_loop(address, "continue", 4)
        runs = {
            strategy: await _run_loop(address, strategy, options.turns) for strategy in STRATEGIES
        }
    rows = [
        _row(strategy, part, turns)
        for strategy in STRATEGIES
        for part, turns in _split_turns(runs[strategy])
    ]
    return Report(f"An agent loop of {options.turns} turns", rows)


@contextlib.asynccontextmanager
async def _serve(options: argparse.Namespace) -> AsyncIterator[str]:
    """Yield the address of the Responses API of the server to measure."""
    if options.base_url:
        yield re.sub("^http", "ws", options.base_url.rstrip("/")) + "/responses"
        return
    folder = resolve_checkpoint(options.model)
    async with run_server(folder, max_model_len=options.max_model_len) as url:
        yield url.removesuffix("realtime") + "responses"


def _split_turns(turns: list[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    """Return (name, turns) of the early turns (2 to 11) and of the late ones (the last 10). The
    first turn is left out: in it, the agent that continues and the agent that resends its history
    send the same."""
    return [("turns 2 to 11", turns[1:11]), ("last 10", turns[-10:])]


def _row(strategy: str, part: str, turns: list[ReportRow]) -> ReportRow:
    names = ("sent_bytes", "prompt_ids", "computed_ids", "first_delta_ms")
    return {
        "strategy": strategy,
        "turns": part,
        **{name: median([float(turn[name] or 0) for turn in turns]) for name in names},
    }


async def _run_loop(address: str, strategy: str, turns: int) -> list[ReportRow]:
    rows: list[ReportRow] = []
    history: list[dict[str, Any]] = []
    last: str | None = None
    async with websockets.connect(address, max_size=None, compression=None) as socket:
        for turn in range(turns):
            new = [_build_input(turn)]
            history += new
            frame = json.dumps(
                {
                    "type": "response.create",
                    # Instructions differ between the strategies, so that they do not share KV.
                    "instructions": f"{strategy}: " + "You are an agent. " * 20,
                    "tool_choice": "none",
                    "store": False,
                    "previous_response_id": last if strategy == "continue" else None,
                    **SAMPLING,
                    "input": history if strategy == "resend" else new,
                    "tools": TOOLS,
                }
            )
            start_s = time.perf_counter()
            await socket.send(frame)
            first_s, response = await _read_response(socket, start_s)
            usage = response["usage"]
            rows.append(
                {
                    "sent_bytes": len(frame),
                    "prompt_ids": usage["input_tokens"],
                    "computed_ids": usage["input_tokens_details"]["cache_write_tokens"],
                    "first_delta_ms": first_s * 1e3,
                }
            )
            last = response["id"]
            history += response["output"]
    return rows


def _build_input(turn: int) -> dict[str, Any]:
    words = (WORDS * 3)[turn % 7 :]
    if turn == 0:
        return {"role": "user", "content": words}
    return {"type": "function_call_output", "call_id": f"call_{turn}", "output": words}


async def _read_response(
    socket: websockets.ClientConnection, start_s: float
) -> tuple[float, dict[str, Any]]:
    """Read a response to its end. Returns the seconds to its first delta, and the response."""
    first_s = 0.0
    while True:
        event = json.loads(await socket.recv())
        match event["type"]:
            case "response.output_text.delta":
                first_s = first_s or time.perf_counter() - start_s
            case "response.completed" | "response.incomplete":
                return first_s, event["response"]
            case "response.failed" | "error":
                raise RuntimeError(json.dumps(event))
            case _:
                pass
