"""An agent's loop over the Responses API: each turn gives the output of a call and wants the next
step. One agent goes on from its last response, one sends its whole history again: bytes sent,
tokens computed and milliseconds to the first delta, for the first turns and the last.
"""

import argparse
import json
import time
from typing import Any

import uvloop
import websockets

from continuo.bench import live_server, session_latency
from continuo.bench.report import Report, ReportRow, median

STRATEGIES = ("goes on", "sends all")
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
    parser.add_argument("--model", default="S", help="S, M, or a checkpoint folder (default S)")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--max-model-len", type=int, default=16_384)


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = session_latency.resolve_checkpoint(options.model)
    async with live_server.run_server(folder, max_model_len=options.max_model_len) as url:
        address = url.removesuffix("realtime") + "responses"
        await _run_loop(address, "goes on", 4)
        runs = {way: await _run_loop(address, way, options.turns) for way in STRATEGIES}
    rows = [_row(way, part, turns) for way in STRATEGIES for part, turns in _split_turns(runs[way])]
    return Report(f"An agent's loop of {options.turns} turns", rows)


def _split_turns(turns: list[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    """Without the first, which everybody computes whole."""
    return [("turns 2 to 11", turns[1:11]), ("last 10", turns[-10:])]


def _row(strategy: str, part: str, turns: list[ReportRow]) -> ReportRow:
    names = ("sent_bytes", "prompt_ids", "computed_ids", "first_delta_ms")
    return {
        "way": strategy,
        "turns": part,
        **{name: median([float(turn[name] or 0) for turn in turns]) for name in names},
    }


async def _run_loop(address: str, strategy: str, turns: int) -> list[ReportRow]:
    made: list[ReportRow] = []
    history: list[dict[str, Any]] = []
    last: str | None = None
    async with websockets.connect(address, max_size=None, compression=None) as socket:
        for turn in range(turns):
            new = [_build_input(turn)]
            history += new
            wish = {"input": history if strategy == "sends all" else new, "tools": TOOLS}
            frame = json.dumps(
                {
                    "type": "response.create",
                    # Of its own, so that neither way finds what the other has said.
                    "instructions": f"{strategy}: " + "You are an agent. " * 20,
                    "tool_choice": "none",
                    "store": False,
                    "previous_response_id": last if strategy == "goes on" else None,
                    **live_server.SAMPLING,
                    **wish,
                }
            )
            began = time.perf_counter()
            await socket.send(frame)
            first_s, response = await _read_response(socket, began)
            usage = response["usage"]
            made.append(
                {
                    "sent_bytes": len(frame),
                    "prompt_ids": usage["input_tokens"],
                    "computed_ids": usage["input_tokens_details"]["cache_write_tokens"],
                    "first_delta_ms": first_s * 1e3,
                }
            )
            last = response["id"]
            history += response["output"]
    return made


def _build_input(turn: int) -> dict[str, Any]:
    words = (live_server.WORDS * 3)[turn % 7 :]
    if turn == 0:
        return {"role": "user", "content": words}
    return {"type": "function_call_output", "call_id": f"call_{turn}", "output": words}


async def _read_response(
    socket: websockets.ClientConnection, began: float
) -> tuple[float, dict[str, Any]]:
    """Seconds to the first delta, and the response."""
    first_s = 0.0
    while True:
        event = json.loads(await socket.recv())
        match event["type"]:
            case "response.output_text.delta":
                first_s = first_s or time.perf_counter() - began
            case "response.completed" | "response.incomplete":
                return first_s, event["response"]
            case "response.failed" | "error":
                raise RuntimeError(json.dumps(event))
            case _:
                pass
