"""The cost of a grammar per step: to compute the token mask of a row, and to accept the id drawn.
`sampled-step` measures what it costs to apply masks.

The ids of one JSON object with a string, an integer and a list are drawn at random from those that
the grammar allows. Measured with two vocabularies: that of the bundled model, and a synthetic one
as large as Qwen's.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as RawTokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as Bytes

from continuo import engine
from continuo.bench.report import Report, ReportRow, median, percentile
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.sampling import Grammar
from continuo.engine.text import GrammarCompiler, ModelText
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

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
    parser.add_argument(
        "--ids", type=int, default=500, help="ids drawn in a walk (default: %(default)s)"
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=151_936,
        metavar="N",
        help="ids of the synthetic vocabulary (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> Report:
    bundled = ModelText(str(Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL))
    synthetic = Tokenizer(_make_synthetic_tokenizer(options.vocabulary))
    rows: list[ReportRow] = []
    vocabularies: dict[int, Callable[[], GrammarCompiler]] = {
        bundled.vocab_size: lambda: bundled.create_grammar_compiler(
            bundled.vocab_size, lambda: None
        ),
        options.vocabulary: lambda: GrammarCompiler(
            synthetic, options.vocabulary, (END_ID,), lambda: None
        ),
    }
    for size, make in vocabularies.items():
        start_s = time.perf_counter()
        compiler = make()
        rows.append(_row(f"vocabulary of {size:,} read", [time.perf_counter() - start_s]))
        rows += _measure_walk(compiler, size, options.ids)
    notes = ["Microseconds. The vocabulary is read when the engine starts."]
    return Report("Turns with a grammar", rows, notes=notes)


def _measure_walk(compiler: GrammarCompiler, vocab: int, ids: int) -> list[ReportRow]:
    grammar = Grammar("json_schema", json.dumps(SCHEMA))
    compile_s = _time_call(lambda: compiler.create_matcher(grammar, (END_ID,)))
    matcher, source = compiler.create_matcher(grammar, (END_ID,)), random.Random(1)
    mask_s, accept_s = list[float](), list[float]()
    for _ in range(ids):
        mask_start_s = time.perf_counter()
        mask = matcher.compute_bitmask()
        mask_end_s = time.perf_counter()
        id = _pick_allowed_id(mask, source)
        accept_start_s = time.perf_counter()
        matcher.accept(id)
        mask_s.append(mask_end_s - mask_start_s)
        accept_s.append(time.perf_counter() - accept_start_s)
    return [
        _row(f"grammar compiled, vocabulary {vocab:,}", [compile_s]),
        _row(f"mask of one row computed, {vocab:,}", mask_s),
        _row(f"id accepted, {vocab:,}", accept_s),
    ]


def _pick_allowed_id(mask: bytes, source: random.Random) -> int:
    """Return the first id that the bitmask allows, searching from a random id on."""
    begin = source.randrange(8 * len(mask))
    candidates = ((begin + n) % (8 * len(mask)) for n in range(8 * len(mask)))
    return next(id for id in candidates if mask[id >> 3] >> (id & 7) & 1)


def _make_synthetic_tokenizer(size: int) -> RawTokenizer:
    """Make a tokenizer with `size` tokens like those of a byte-level BPE: bytes, then words of
    random syllables, half of which begin with a space."""
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
    start_s = time.perf_counter()
    act()
    return time.perf_counter() - start_s


def _row(what: str, spent: list[float]) -> ReportRow:
    return {"what": what, "median_us": median(spent) * 1e6, "p99_us": percentile(spent, 99) * 1e6}
