"""Guided decoding: grammars, compiled to the mask of ids that a turn may draw next.

    Grammar ── compiled once, off the loop's thread ──▶ cache ── copied per turn ──▶ GrammarMatcher

A matcher follows one turn. It accepts an id only once the device has returned it, never one that
may still be discarded, so cancel, retraction and rewind need no code here; a turn that resumes on
another engine replays its ids. A mask is bytes: torch is not imported.

All matchers of one compiled grammar share the states of its lexer, which are added as masks are
computed: a pattern of 80 characters can come to hold 100 MB. The number of states is therefore
limited, the memory of a grammar is estimated from the time of its masks, and one that was used for
long is compiled again for the next turn, without the states.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, cast

import llguidance

from continuo.engine.errors import BadRequest
from continuo.engine.resident_cache import CacheSize, ResidentCache
from continuo.engine.sampling import Grammar
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

SOURCE_BYTES_MAX = 256 * 1024
"""Longest source of a grammar; longer ones are refused."""
SCHEMA_CHARS_MAX = 64 * 1024
"""Longest JSON schema that can be enforced."""
CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Size of the cache of compiled grammars, in resident bytes as estimated."""
TRIAL_S_MAX = 0.05
"""Maximum thread time of the first masks of a grammar, in seconds; a slower grammar is refused."""
_TRIAL_MASKS = 3
_GRAMMAR_OVERHEAD_BYTES = 32 * 1024
_SOURCE_FACTOR = 10
"""A compiled grammar takes about ten times the bytes of its source, before its first mask."""
_STATES_BYTES_PER_S = 150_000_000
"""Memory of the lexer states that are added in a second of computing masks: up to this where all
are new, hardly any where they are known."""
_STATES_BYTES_MAX = 8 * 1024 * 1024
"""Memory of the lexer states of one grammar at its limit: about 500 bytes each."""
_REUSE_S_MAX = 0.02
"""Time of masks after which a grammar is compiled again for the next turn, or _REUSE_COMPILATIONS
times what that takes, if this is more."""
_REUSE_COMPILATIONS = 4
_SCHEMA_PROBLEMS_BYTES_MAX = 1024 * 1024
_TRIM_BYTES_MIN = 16 * 1024 * 1024
_TRIM_INTERVAL_S = 10.0
"""The allocator gives memory back to the system after this many bytes of grammars were evicted, and
once in this time at most: it delays the next step, which allocates anew."""
PENDING_MAX = 512
"""Maximum number of grammars waiting to be compiled; more are refused."""
JSON_WHITESPACE = r"[ \n]{1,16}"
"""Regex of the whitespace allowed between JSON tokens. Bounded, because an uncertain model may
otherwise emit whitespace forever."""
_JSON_OPTIONS: dict[str, object] = {"whitespace_pattern": JSON_WHITESPACE}
_FIXED_OPTIONS: dict[str, object] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=100_000,
    max_grammar_size=200_000,
    max_items_in_row=8_000,
    max_lexer_states=16_000,
)
"""Cost limits: a grammar that takes more than tenths of a second to compile is refused, and a turn
whose grammar takes more than milliseconds per step, or too many states, fails."""
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
    return "%json " + json.dumps(
        {**default, **cast(dict[str, object], value), "x-guidance": _JSON_OPTIONS}
    )


def find_schema_problem(schema: str) -> str | None:
    """Explain in one line why a JSON schema cannot be enforced. Returns None if it can.

    May take tenths of a second the first time.
    """
    if len(schema) > SCHEMA_CHARS_MAX:
        return f"it has {len(schema):,} characters; the limit is {SCHEMA_CHARS_MAX:,}"
    key = hashlib.sha256(schema.encode()).digest()
    problem = _schema_problems.get(key)
    if problem is None:
        problem = _find_schema_problem(schema) or ""
        _schema_problems.add(key, problem, 500 + sys.getsizeof(problem))
    return problem or None


_schema_problems: ResidentCache[bytes, str] = ResidentCache(_SCHEMA_PROBLEMS_BYTES_MAX)
"""Problem of each schema that was checked, by its digest; empty if it has none."""


def measure_schema_checks() -> CacheSize:
    """Return the size of the cache of `find_schema_problem`, one for the process."""
    return _schema_problems.size


def _find_schema_problem(schema: str) -> str | None:
    try:
        rule = llguidance.LLMatcher.grammar_from_lark(f"start: {build_json_rule(schema)}")
    except SchemaError as error:
        return str(error)
    problem = llguidance.LLMatcher.validate_grammar(rule, limits=_LIMITS)
    if problem:
        return _shorten_problem(problem)
    matcher = llguidance.LLMatcher(_byte_tokenizer(), rule, log_level=0, limits=_LIMITS)
    problem = _find_cost_problem(matcher)
    if matcher.is_stopped():
        return "no value satisfies it: a reference refers to itself"
    return problem


def _find_cost_problem(matcher: llguidance.LLMatcher) -> str | None:
    """Compute the first masks of a grammar, in a copy of its matcher, and explain in one line why
    they cost too much. Returns None if they do not. The matcher itself computes the first mask."""
    start_s = time.thread_time()
    mask = matcher.compute_bitmask()
    trial = matcher.deep_copy()
    for _ in range(_TRIAL_MASKS - 1):
        drawn = next((8 * n + byte.bit_length() - 1 for n, byte in enumerate(mask) if byte), None)
        if drawn is None or trial.is_stopped() or not trial.consume_token(drawn):
            break
        mask = trial.compute_bitmask()
    spent_s = time.thread_time() - start_s
    if spent_s > TRIAL_S_MAX:
        return (
            f"its first masks take {1000 * spent_s:.0f} ms; the limit is {1000 * TRIAL_S_MAX:.0f}"
        )
    return None


@functools.cache
def _byte_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")


class _Use:
    """How much one compiled grammar was used, by the matchers that share its lexer."""

    __slots__ = ("has_failed", "masks_s")

    def __init__(self) -> None:
        self.masks_s = 0.0
        """Thread time of all masks."""
        self.has_failed = False
        """Whether it has become too complex."""

    @property
    def states_bytes(self) -> int:
        """The estimated memory of the states of its lexer."""
        return min(int(self.masks_s * _STATES_BYTES_PER_S), _STATES_BYTES_MAX)


class GrammarMatcher:
    """State of the grammar of one turn after the ids drawn so far."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        ends: Iterable[int],
        stop_ids: Iterable[int],
        use: _Use | None = None,
    ) -> None:
        """`ends`: ids that `matcher` allows where the grammar may end. Token masks allow the turn's
        `stop_ids` in their place. `use`: that of the compiled grammar."""
        self._matcher = matcher
        self._use = use or _Use()
        self._stop_ids = frozenset(stop_ids)
        self._end_ids = self._stop_ids.union(ends)

    def accept(self, token_id: int) -> None:
        """Advance by an id that the turn has drawn."""
        if token_id not in self._stop_ids:
            self._matcher.consume_token(token_id)

    def copy(self) -> "GrammarMatcher":
        return GrammarMatcher(self._matcher.deep_copy(), self._end_ids, self._stop_ids, self._use)

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many of `token_ids`, none of them a stop id, the grammar allows next, up to
        the first that it does not allow."""
        return self._matcher.validate_tokens(list(token_ids))

    def compute_bitmask(self) -> bytes:
        """Compute the token mask: one bit per id, least significant bit first, set if the id may be
        drawn next.

        All bits are clear if the grammar has become too complex.
        """
        start_s = time.thread_time()
        mask = bytearray(self._matcher.compute_bitmask())
        self._use.masks_s += time.thread_time() - start_s
        if self._matcher.is_error():
            self._use.has_failed = True
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
    use: _Use
    compilation_s: float = 0.0

    @property
    def is_reusable(self) -> bool:
        """Whether further turns may share the states of its lexer."""
        return not self.use.has_failed and self.use.masks_s <= max(
            _REUSE_S_MAX, _REUSE_COMPILATIONS * self.compilation_s
        )

    @property
    def cost_bytes(self) -> int:
        """The memory of the grammar, as estimated."""
        if self.matcher is None:
            return 500 + sys.getsizeof(self.problem)
        return _GRAMMAR_OVERHEAD_BYTES + _SOURCE_FACTOR * self.size + self.use.states_bytes


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
        self._compiled: ResidentCache[str, _Compiled] = ResidentCache(CACHE_BYTES_MAX)
        self._trimmed_s = -_TRIM_INTERVAL_S
        self._trimmed_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The estimated memory of the compiled grammars that are kept."""
        return self._compiled.held_bytes

    def prepare(self, grammar: Grammar, group: str = "") -> bool:
        """Start compiling a grammar unless it is cached. `group`: the tenant whose share of the
        cache it takes.

        Returns True if `create_matcher` would return at once. Raises BadRequest if the grammar is
        too long, or if too many grammars are waiting to be compiled.
        """
        key = _compute_key(grammar)
        if self._find_compiled(key, group) is not None:
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
        self._add_compiled(key, future.result(), group)
        return True

    def create_matcher(
        self, grammar: Grammar, stop_ids: Sequence[int], group: str = ""
    ) -> GrammarMatcher:
        """Create a matcher for a new turn, compiling the grammar now unless it is cached.

        Raises BadRequest if the grammar cannot be enforced.
        """
        key = _compute_key(grammar)
        found = self._find_compiled(key, group)
        if found is None:
            found = self._compile(grammar, len(grammar.source.encode()))
            self._add_compiled(key, found, group)
        if found.matcher is None:
            raise _make_refusal(found.problem)
        return GrammarMatcher(found.matcher.deep_copy(), self._end_ids, stop_ids, found.use)

    def _find_compiled(self, key: str, group: str) -> _Compiled | None:
        """Find a compiled grammar, and charge what it has come to hold. Returns None if it is to be
        compiled."""
        found = self._compiled.get(key)
        if found is None:
            return None
        if not found.is_reusable:
            self._compiled.remove(key)
            return None
        self._add_compiled(key, found, group)
        return found

    def _add_compiled(self, key: str, compiled: _Compiled, group: str) -> None:
        self._compiled.add(key, compiled, compiled.cost_bytes, group)
        evicted_bytes, now_s = self._compiled.evicted_bytes, time.monotonic()
        if (
            evicted_bytes - self._trimmed_bytes >= _TRIM_BYTES_MIN
            and now_s - self._trimmed_s >= _TRIM_INTERVAL_S
        ):
            self._trimmed_bytes, self._trimmed_s = evicted_bytes, now_s
            self._executor.submit(give_memory_back)

    def _compile(self, grammar: Grammar, size: int) -> _Compiled:
        """Compile a grammar. `prepare` runs this on the compiler's thread, `create_matcher` on the
        caller's."""
        if self._vocabulary is None:
            return _Compiled(None, self._tokenizer_problem, size, _Use())
        try:
            source = _to_lark(grammar)
        except SchemaError as error:
            return _Compiled(None, str(error), size, _Use())
        start_s = time.thread_time()
        matcher = llguidance.LLMatcher(
            self._vocabulary,
            llguidance.LLMatcher.grammar_from_lark(source),
            log_level=0,
            limits=_LIMITS,
        )
        if matcher.is_error():
            return _Compiled(None, _shorten_problem(matcher.get_error()), size, _Use())
        if problem := _find_cost_problem(matcher):
            return _Compiled(None, problem, size, _Use())
        return _Compiled(matcher, "", size, _Use(), time.thread_time() - start_s)


def give_memory_back() -> None:
    """Return freed memory from the allocator to the system. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _to_lark(grammar: Grammar) -> str:
    match grammar.kind:
        case "lark":
            return grammar.source
        case "json_schema":
            return f"start: {build_json_rule(grammar.source)}"
        case "json":
            return f"start: {build_json_rule(_OBJECT)}"


def build_lark_with_fixed_separators(grammar: Grammar) -> str:
    """Return the Lark source of a grammar for another server's llguidance, whose JSON has a space
    after comma and colon and no other whitespace: versions before 1.8 ignore the bound on
    whitespace. Raises BadRequest for a schema that is not a JSON object."""
    try:
        source = _to_lark(grammar)
    except SchemaError as error:
        raise _make_refusal(str(error)) from None
    return source.replace(json.dumps(_JSON_OPTIONS), json.dumps(_FIXED_OPTIONS))


def _compute_key(grammar: Grammar) -> str:
    return hashlib.sha256(f"{grammar.kind}\0{grammar.source}".encode()).hexdigest()


def _shorten_problem(problem: str) -> str:
    """Reduce an error message of llguidance to one line, without location and state dump."""
    line = " ".join(_DUMP.split(problem, maxsplit=1)[0].split())
    return _ERROR_LOCATION.sub("", line)[:300]


def _make_refusal(problem: str) -> BadRequest:
    return BadRequest(f"the grammar cannot be enforced: {problem}", field="grammar")
