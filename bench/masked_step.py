"""What following a grammar costs a step: the mask of one row, told the id it drew, and applied.

The walk is a JSON object with strings, numbers and a list, its ids drawn at random from what is
allowed. One vocabulary is the bundled model's, the other made up, as large as Qwen's.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as Bytes

from continuo import engine
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.engine.batch import SampleParams
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.device.sampling import draw
from continuo.engine.text import GrammarCompiler, ModelText
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.wire.messages import Grammar

LARGE_VOCAB_SIZE = 151_936
END_ID = 0
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 400},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 200},
    },
    "required": ["title", "year", "tags"],
    "additionalProperties": False,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ids", type=int, default=500, help="ids drawn in one walk")


def run(options: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    bundled = ModelText(str(Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL))
    made_up = Tokenizer(_make_synthetic_tokenizer(LARGE_VOCAB_SIZE))
    rows: list[ReportRow] = []
    vocabularies: dict[int, Callable[[], GrammarCompiler]] = {
        bundled.vocab_size: lambda: bundled.create_grammar_compiler(
            bundled.vocab_size, lambda: None
        ),
        LARGE_VOCAB_SIZE: lambda: GrammarCompiler(
            made_up, LARGE_VOCAB_SIZE, (END_ID,), lambda: None
        ),
    }
    for size, make in vocabularies.items():
        began = time.perf_counter()
        grammars = make()
        rows.append(_row(f"vocabulary of {size:,} read", [time.perf_counter() - began]))
        rows += _measure_walk(grammars, size, options.ids)
        rows += [_measure_application(count, size) for count in (1, 8, 64)]
    notes = ["Microseconds. The vocabulary is read when the engine starts."]
    return Report("Turns that follow a grammar", rows, notes=notes)


def _measure_walk(grammars: GrammarCompiler, vocab: int, ids: int) -> list[ReportRow]:
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    compiled = _time_call(lambda: grammars.create_matcher(grammar, (END_ID,)))
    matcher, source = grammars.create_matcher(grammar, (END_ID,)), random.Random(1)
    masks, told = list[float](), list[float]()
    for _ in range(ids):
        began = time.perf_counter()
        mask = matcher.compute_bitmask()
        asked = time.perf_counter()
        id = _pick_allowed_id(mask, source)
        drawn = time.perf_counter()
        matcher.accept(id)
        masks.append(asked - began)
        told.append(time.perf_counter() - drawn)
    return [
        _row(f"compiled, vocabulary {vocab:,}", [compiled]),
        _row(f"mask of one row, {vocab:,}", masks),
        _row(f"told an id, {vocab:,}", told),
    ]


def _pick_allowed_id(mask: bytes, source: random.Random) -> int:
    """An allowed id, looked for from a random one on."""
    begin = source.randrange(8 * len(mask))
    places = ((begin + n) % (8 * len(mask)) for n in range(8 * len(mask)))
    return next(id for id in places if mask[id >> 3] >> (id & 7) & 1)


class _EveryOtherIdMask:
    """Allows every other id."""

    def __init__(self, vocab: int) -> None:
        self._bytes = b"\x55" * (vocab // 8 + 1)

    def compute_bitmask(self) -> bytes:
        return self._bytes


def _measure_application(count: int, vocab: int) -> ReportRow:
    """Greedy rows with a mask against the same without."""
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(0))
    free, masked = [SampleParams()] * count, [SampleParams(mask=_EveryOtherIdMask(vocab))] * count
    draw(logits, masked)
    plain = [_time_call(lambda: draw(logits, free)) for _ in range(30)]
    spent = [_time_call(lambda: draw(logits, masked)) - median(plain) for _ in range(30)]
    return _row(f"masks of {count} rows applied, {vocab:,}", spent)


def _make_synthetic_tokenizer(size: int) -> RawTokenizer:
    """Bytes, then words of syllables, half of them behind a space, as byte-level BPE has them."""
    names = sorted(Bytes.alphabet())
    source, seen = random.Random(0), set(names)
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "er", "on")]
    while len(names) < size:
        word = "".join(source.choices(syllables, k=source.randint(1, 4)))
        name = ("Ġ" if source.random() < 0.5 else "") + word
        if name not in seen:
            seen.add(name)
            names.append(name)
    raw = RawTokenizer(BPE({name: id for id, name in enumerate(names)}, []))
    raw.decoder = ByteLevel()  # type: ignore[assignment]
    return raw


def _time_call(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _row(what: str, spent: list[float]) -> ReportRow:
    return {"what": what, "median_us": median(spent) * 1e6, "p99_us": percentile(spent, 99) * 1e6}
