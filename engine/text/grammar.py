"""Guided decoding: grammars, compiled to the mask of ids that a turn may draw next.

    Grammar ── compiled once, off the loop's thread ──▶ cache ── copied per turn ──▶ GrammarMatcher

A matcher follows one turn. It accepts an id only once the device has returned it, never one that
may still be discarded, so cancel, retraction and rewind need no code here; a turn that resumes on
another engine replays its ids. A mask is bytes: torch is not imported.
"""

import functools
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, cast

import llguidance

from continuo.engine.errors import BadRequest
from continuo.engine.sampling import Grammar
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

SOURCE_BYTES_MAX = 256 * 1024
"""Longest source of a grammar; longer ones are refused."""
SCHEMA_CHARS_MAX = 64 * 1024
"""Longest JSON schema that can be enforced."""
CACHE_BYTES_MAX = 8 * 1024 * 1024
"""Size of the LRU cache of compiled grammars, in bytes of their sources. A compiled grammar takes
about ten times the bytes of its source."""
PENDING_MAX = 512
"""Maximum number of grammars waiting to be compiled; more are refused."""
JSON_WHITESPACE = r"[ \n]{1,16}"
"""Regex of the whitespace allowed between JSON tokens. Bounded, because an uncertain model may
otherwise emit whitespace forever."""

_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    max_grammar_size=200_000,
    max_items_in_row=8_000,
)
"""Cost limits: a grammar that takes more than tenths of a second to compile is refused, and a turn
whose grammar takes more than milliseconds per step fails."""
_ERROR_LOCATION = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_DUMP = re.compile(r"\n<state>|\n\d+ \| ")
_OBJECT = '{"type": "object"}'


class SchemaError(Exception):
    """A schema that cannot be enforced; the message is the reason, in one line."""


def build_json_rule(schema: str, **default: str) -> str:
    """Convert a JSON schema to a term of a Lark grammar. `default`: keywords that are added to the
    schema unless the schema has them.

    Raises SchemaError if `schema` is not a JSON object.
    """
    try:
        value: object = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is not JSON ({error})") from None
    if value is True:
        value = {}
    if not isinstance(value, dict):
        raise SchemaError("it must be a JSON object")
    options = {"whitespace_pattern": JSON_WHITESPACE}
    return "%json " + json.dumps(
        {**default, **cast(dict[str, object], value), "x-guidance": options}
    )


def find_schema_problem(schema: str) -> str | None:
    """Explain in one line why a JSON schema cannot be enforced. Returns None if it can.

    May take tenths of a second the first time.
    """
    if len(schema) > SCHEMA_CHARS_MAX:
        return f"it has {len(schema):,} characters; the limit is {SCHEMA_CHARS_MAX:,}"
    return _find_schema_problem(schema)


@functools.lru_cache(maxsize=256)
def _find_schema_problem(schema: str) -> str | None:
    try:
        rule = llguidance.LLMatcher.grammar_from_lark(f"start: {build_json_rule(schema)}")
    except SchemaError as error:
        return str(error)
    problem = llguidance.LLMatcher.validate_grammar(rule, limits=_LIMITS)
    if problem:
        return _shorten_problem(problem)
    matcher = llguidance.LLMatcher(_byte_tokenizer(), rule, log_level=0, limits=_LIMITS)
    matcher.compute_bitmask()
    if matcher.is_stopped():
        return "no value satisfies it: a reference refers to itself"
    return None


@functools.cache
def _byte_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")


class GrammarMatcher:
    """State of the grammar of one turn after the ids drawn so far."""

    def __init__(
        self, matcher: llguidance.LLMatcher, ends: Iterable[int], stop_ids: Iterable[int]
    ) -> None:
        """`ends`: ids that `matcher` allows where the grammar may end. Token masks allow the turn's
        `stop_ids` in their place."""
        self._matcher = matcher
        self._stop_ids = frozenset(stop_ids)
        self._end_ids = self._stop_ids.union(ends)

    def accept(self, token_id: int) -> None:
        """Advance by an id that the turn has drawn."""
        if token_id not in self._stop_ids:
            self._matcher.consume_token(token_id)

    def copy(self) -> "GrammarMatcher":
        return GrammarMatcher(self._matcher.deep_copy(), self._end_ids, self._stop_ids)

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many of `token_ids`, none of them a stop id, the grammar allows next, up to
        the first that it does not allow."""
        return self._matcher.validate_tokens(list(token_ids))

    def compute_bitmask(self) -> bytes:
        """Compute the token mask: one bit per id, least significant bit first, set if the id may be
        drawn next.

        All bits are clear if the grammar has become too complex.
        """
        mask = bytearray(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            return bytes(len(mask))
        may_end = self._matcher.is_accepting()
        for id in self._end_ids:
            if may_end and id in self._stop_ids:
                mask[id >> 3] |= 1 << (id & 7)
            else:
                mask[id >> 3] &= ~(1 << (id & 7))
        return bytes(mask)


class DraftMasks:
    """The token masks after each of some ids that the turn may draw, computed when first needed, in
    a copy of its matcher, which is advanced by them."""

    def __init__(self, matcher: GrammarMatcher, drafts: Sequence[int]) -> None:
        self._original = matcher
        self._drafts = drafts
        self._advanced: GrammarMatcher | None = None
        self._masks: list[bytes] = []

    def compute_after(self, count: int) -> bytes:
        """Compute the token mask after the first `count` ids."""
        matcher = self._advanced = self._advanced or self._original.copy()
        while len(self._masks) < count:
            matcher.accept(self._drafts[len(self._masks)])
            self._masks.append(matcher.compute_bitmask())
        return self._masks[count - 1]


class DraftMask(NamedTuple):
    """The token mask after the first `position` ids of `masks`."""

    masks: DraftMasks
    position: int

    def compute_bitmask(self) -> bytes:
        return self.masks.compute_after(self.position)


class _Compiled(NamedTuple):
    matcher: llguidance.LLMatcher | None
    problem: str
    """Reason why the grammar cannot be enforced, if `matcher` is None; else ""."""
    size: int
    """Size of the grammar's source in bytes."""


class GrammarCompiler:
    """Compiles grammars on a separate thread and caches the compiled ones."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        stop_ids: Sequence[int],
        wake: Callable[[], None],
    ) -> None:
        """Read the vocabulary of the tokenizer, which takes about a second for a large one.

        `wake` is called, on another thread, whenever a grammar has been compiled. With a tokenizer
        that is neither byte-level nor has byte fallback, every grammar is refused.
        """
        self._end_ids = tuple(stop_ids) or (0,)
        self._wake = wake
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._tokenizer_problem = ""
        try:
            self._vocabulary = llguidance.LLTokenizer(
                tokenizer.raw.to_str(),
                n_vocab=max(vocab_size, tokenizer.vocab_size),
                eos_token=[*self._end_ids],
            )
        except ValueError as error:
            self._tokenizer_problem = (
                f"this model's tokenizer supports no grammars: {_shorten_problem(str(error))}"
            )
        self._executor = ThreadPoolExecutor(1, "grammar")
        self._pending: dict[str, Future[_Compiled]] = {}
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._compiled_bytes = 0

    def prepare(self, grammar: Grammar) -> bool:
        """Start compiling a grammar unless it is cached.

        Returns True if `create_matcher` would return at once. Raises BadRequest if the grammar is
        too long, or if too many grammars are waiting to be compiled.
        """
        key = _compute_key(grammar)
        if key in self._compiled:
            return True
        future = self._pending.get(key)
        if future is None:
            size = len(grammar.source.encode())
            if size > SOURCE_BYTES_MAX:
                raise _make_refusal(f"it has {size:,} bytes; the limit is {SOURCE_BYTES_MAX:,}")
            if len(self._pending) >= PENDING_MAX:
                raise _make_refusal(f"{PENDING_MAX} others are being compiled; try again")
            future = self._executor.submit(self._compile, grammar, size)
            self._pending[key] = future
            future.add_done_callback(lambda _: self._wake())
        if not future.done():
            return False
        del self._pending[key]
        self._add_compiled(key, future.result())
        return True

    def create_matcher(self, grammar: Grammar, stop_ids: Sequence[int]) -> GrammarMatcher:
        """Create a matcher for a new turn, compiling the grammar now unless it is cached.

        Raises BadRequest if the grammar cannot be enforced.
        """
        key = _compute_key(grammar)
        found = self._compiled.get(key)
        if found is None:
            found = self._compile(grammar, len(grammar.source.encode()))
            self._add_compiled(key, found)
        else:
            self._compiled.move_to_end(key)
        if found.matcher is None:
            raise _make_refusal(found.problem)
        return GrammarMatcher(found.matcher.deep_copy(), self._end_ids, stop_ids)

    def _add_compiled(self, key: str, compiled: _Compiled) -> None:
        self._compiled[key] = compiled
        self._compiled_bytes += compiled.size
        while self._compiled_bytes > CACHE_BYTES_MAX:
            _, evicted = self._compiled.popitem(last=False)
            self._compiled_bytes -= evicted.size

    def _compile(self, grammar: Grammar, size: int) -> _Compiled:
        """Compile a grammar. `prepare` runs this on the compiler's thread, `create_matcher` on the
        caller's."""
        if self._vocabulary is None:
            return _Compiled(None, self._tokenizer_problem, size)
        try:
            source = _to_lark(grammar)
        except SchemaError as error:
            return _Compiled(None, str(error), size)
        matcher = llguidance.LLMatcher(
            self._vocabulary,
            llguidance.LLMatcher.grammar_from_lark(source),
            log_level=0,
            limits=_LIMITS,
        )
        if matcher.is_error():
            return _Compiled(None, _shorten_problem(matcher.get_error()), size)
        return _Compiled(matcher, "", size)


def _to_lark(grammar: Grammar) -> str:
    match grammar.kind:
        case "lark":
            return grammar.source
        case "json_schema":
            return f"start: {build_json_rule(grammar.source)}"
        case "json":
            return f"start: {build_json_rule(_OBJECT)}"


def _compute_key(grammar: Grammar) -> str:
    return hashlib.sha256(f"{grammar.kind}\0{grammar.source}".encode()).hexdigest()


def _shorten_problem(problem: str) -> str:
    """Reduce an error message of llguidance to one line, without location and state dump."""
    line = " ".join(_DUMP.split(problem, maxsplit=1)[0].split())
    return _ERROR_LOCATION.sub("", line)[:300]


def _make_refusal(problem: str) -> BadRequest:
    return BadRequest(f"the grammar cannot be enforced: {problem}", field="grammar")
