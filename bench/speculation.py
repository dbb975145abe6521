"""Speculative decoding by prompt lookup: time per token with drafts and without, on output that
repeats itself and on prose.

tool output  a table of records, in a JSON schema, from the result of a tool in the prompt
prose        stories at temperature 0.8, of which no two begin alike

Two engines answer the same prompts with the same seeds, in turns; their outputs must be equal.
`speed-up` is the median over the rounds of the time per token without drafts, divided by that with
drafts, first tokens left out. It must be at least 0.98 where drafts do not help. `accepted` is the
share of the drafts that were drawn, `tokens per row` what a row with drafts has drawn.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import uvloop

from continuo.bench.report import Report, ReportRow, median
from continuo.bench.targets.engine_target import read_turn, run_engine
from continuo.bench.targets.selection import resolve_checkpoint
from continuo.bench.targets.target import Turn
from continuo.engine import (
    BUNDLED_MODEL,
    ChatMessage,
    EngineClient,
    EngineStats,
    Grammar,
    ModelText,
    Sampling,
    SpeculativeConfig,
)

CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Quito", "Bern", "Riga", "Dakar")
SUBJECTS = ("a fox", "a lighthouse", "a baker", "a train", "the sea", "a clock", "two brothers")
RECORD = {
    "type": "object",
    "properties": {
        "city": {"enum": [*CITIES]},
        "temperature_celsius": {"type": "integer", "minimum": 0, "maximum": 40},
        "wind_direction": {"enum": ["north", "south", "east", "west"]},
    },
    "required": ["city", "temperature_celsius", "wind_direction"],
    "additionalProperties": False,
}
TABLE = {"type": "array", "items": RECORD, "minItems": len(CITIES), "maxItems": len(CITIES)}


class Prompt(NamedTuple):
    text: str
    sampling: Sampling


MakePrompt = Callable[[int, tuple[int, ...], int], Prompt]
"""Makes the prompt of a round, given the stop ids of the model and the longest output."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=BUNDLED_MODEL,
        help="checkpoint with a chat template (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=300, help="longest output (default: %(default)s)"
    )
    parser.add_argument(
        "--speculative-config",
        default='{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3}',
        metavar="JSON",
        help="of the engine with drafts (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    return uvloop.run(_run(options))


async def _run(options: argparse.Namespace) -> Report:
    folder = resolve_checkpoint(options.model)
    config = msgspec.json.decode(options.speculative_config, type=SpeculativeConfig)
    rows: list[ReportRow] = []
    async with (
        run_engine(folder) as plain,
        run_engine(folder, speculative_config=config) as drafting,
    ):
        text = ModelText(plain.ready.folder)
        for kind, make in (("tool output", _ask_for_a_table), ("prose", _ask_for_a_story)):
            rows.append({"output": kind, **await _measure(plain, drafting, text, make, options)})
    note = f"One session at a time, {drafting.ready.dtype} on {drafting.ready.device}."
    title = f"Speculative decoding, {config.num_speculative_tokens} drafts at most"
    return Report(title, rows, notes=[note])


def _ask_for_a_table(number: int, stop_ids: tuple[int, ...], tokens: int) -> Prompt:
    source = random.Random(number)
    winds = RECORD["properties"]["wind_direction"]["enum"]
    table = [
        {
            "city": city,
            "temperature_celsius": source.randint(0, 40),
            "wind_direction": source.choice(winds),
        }
        for city in source.sample(CITIES, len(CITIES))
    ]
    grammar = Grammar("json_schema", json.dumps(TABLE))
    sampling = Sampling(max_tokens=tokens, stop_ids=stop_ids, grammar=grammar, seed=number)
    return Prompt(f"The weather is {json.dumps(table)}. Repeat it.", sampling)


def _ask_for_a_story(number: int, stop_ids: tuple[int, ...], tokens: int) -> Prompt:
    subject = SUBJECTS[number % len(SUBJECTS)]
    sampling = Sampling(max_tokens=tokens, stop_ids=stop_ids, temperature=0.8, seed=number)
    return Prompt(f"Tell me a story about {subject}.", sampling)


async def _measure(
    plain: EngineClient, drafting: EngineClient, text: ModelText, make: MakePrompt, options: Any
) -> ReportRow:
    ratios: list[float] = []
    ms: dict[str, list[float]] = {"plain": [], "drafting": []}
    before = await drafting.fleet.stats()
    for number in range(options.rounds + 1):
        prompt = make(number, text.stop_ids, options.tokens)
        engines = [("plain", plain), ("drafting", drafting)]
        turns = {
            name: await _run_turn(engine, text, prompt)
            for name, engine in (engines if number % 2 else reversed(engines))
        }
        if turns["plain"].output != turns["drafting"].output:
            raise RuntimeError(f"the outputs with drafts and without differ: {prompt.text}")
        if number == 0:  # warms up
            before = await drafting.fleet.stats()
            continue
        spent = {name: _ms_per_token(turn) for name, turn in turns.items()}
        for name, value in spent.items():
            ms[name].append(value)
        ratios.append(spent["plain"] / spent["drafting"])
    return {
        **_describe_drafts(before, await drafting.fleet.stats()),
        "ms per token, without": median(ms["plain"]),
        "ms per token, with drafts": median(ms["drafting"]),
        "speed-up": median(ratios),
    }


async def _run_turn(engine: EngineClient, text: ModelText, prompt: Prompt) -> Turn:
    assert text.template is not None, "the model has no chat template"
    messages = [ChatMessage(role="user", content=prompt.text)]
    ids = text.template.extend([], messages, with_header=True).ids
    session = await engine.open()
    await engine.append(session, ids)
    start_s = time.perf_counter()
    turn = await read_turn(await engine.generate(session, prompt.sampling), start_s)
    await engine.close(session, keep_prefix=False)
    return turn


def _ms_per_token(turn: Turn) -> float:
    return (turn.token_s[-1] - turn.token_s[0]) / max(len(turn.token_s) - 1, 1) * 1e3


def _describe_drafts(before: EngineStats, after: EngineStats) -> ReportRow:
    drafts = after.draft_tokens - before.draft_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    rows = after.draft_rows - before.draft_rows
    drawn = after.tokens_drawn - before.tokens_drawn
    return {
        "tokens": drawn,
        "drafts": drafts,
        "accepted": accepted / drafts if drafts else None,
        "tokens per row": (accepted + rows) / rows if rows else None,
        "accepted of all tokens": accepted / drawn if drawn else None,
    }
