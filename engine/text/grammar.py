"""Guided decoding: grammars, compiled to the mask of ids that a turn may draw next.

    Grammar ── compiled once, off the loop's thread ──▶ cache ── copied per turn ──▶ GrammarMatcher

A matcher follows one turn. It accepts an id only once the device has returned it, never one that
may still be discarded, so cancel, retraction and rewind need no code here; a turn that resumes on
another engine replays its ids. A mask is bytes: torch is not imported.

The memory of a compiled grammar is measured, because it follows from nothing that is known before:
a schema takes 20 to 700 times its length. All matchers of one compiled grammar share the states of
its lexer, which are added as masks are computed: a pattern of 80 characters can come to hold 100
MB. The number of states is therefore limited, their memory is estimated from the time of the masks,
and a grammar that was used for long is compiled again for the next turn, without the states.
"""

import functools
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, cast

import llguidance

from continuo.engine.allocator import give_memory_back
from continuo.engine.errors import BadRequest
from continuo.engine.resident_cache import CacheSize, ResidentCache
from continuo.engine.sampling import Grammar
from continuo.engine.text.grammar_trial import (
    GRAMMAR_BYTES_MAX,
    MIB,
    Trial,
    find_size_problem,
    shorten_problem,
    try_grammar,
)
from continuo.engine.text.tokenizer.tokenizer import Tokenizer

SOURCE_BYTES_MAX = 256 * 1024
"""Longest source of a grammar; longer ones are refused."""
SCHEMA_CHARS_MAX = 64 * 1024
"""Longest JSON schema that can be enforced."""
CACHE_BYTES_MAX = 64 * MIB
"""Size of the cache of compiled grammars, in resident bytes."""
_COMPILED_BYTES_MIN, _SOURCE_FACTOR_MIN = 16 * 1024, 2
_COMPILED_BYTES_MAX, _SOURCE_FACTOR_MAX = 640 * 1024, 800
"""Usual memory of a compiled grammar: so much, and so many times its source. A measurement beyond
may include memory of other threads, and is repeated."""
_MEASURED_ONCE_CHARS_MAX = 1024
"""Longest source whose memory is measured only once if it is usual."""
_STATES_BYTES_PER_S = 400_000_000
"""Memory of the lexer states that are added in a second of computing masks: up to this where all
are new, hardly any where they are known."""
_STATES_BYTES_MAX = 8 * MIB
"""Memory of the lexer states of one grammar at its limit: about 500 bytes each."""
_GROWTH_CHARGED = 1.125
"""A grammar that has grown by this factor during a turn is charged again."""
_REUSE_S_MAX = 0.02
"""Time of masks after which a grammar is compiled again for the next turn, or _REUSE_COMPILATIONS
times what that takes, if this is more."""
_REUSE_COMPILATIONS = 4
_TRIM_BYTES_MIN = 16 * MIB
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
        if value is True:
            value = {}
        if not isinstance(value, dict):
            raise SchemaError("it must be a JSON object")
        return "%json " + json.dumps(
            {**default, **cast(dict[str, object], value), "x-guidance": _JSON_OPTIONS}
        )
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is not JSON ({error})") from None


def build_regex_grammar(regex: str) -> Grammar:
    """Return the grammar of the outputs that a regular expression matches as a whole, in the syntax
    of Rust's `regex`."""
    literal = _LITERAL_ENDS.sub(lambda found: _ESCAPES.get(found[0], found[0]), regex)
    return Grammar("lark", f"start: MATCH\nMATCH: /{literal}/")


_LITERAL_ENDS = re.compile(r"\\\n|\\.|[/\n\r]")
"""Ends of a regex literal of Lark, and the escapes that only look like one."""
_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}


def build_joint_grammar(schemas: Iterable[str]) -> Grammar:
    """Return a grammar with all of several JSON schemas in it: each may cost little, and all of
    them too much. Raises SchemaError."""
    rules = [f'rule_{n}: "{n}" {build_json_rule(schema)}' for n, schema in enumerate(schemas)]
    start = "start: " + " | ".join(f"rule_{n}" for n in range(len(rules)))
    return Grammar("lark", "\n".join([start, *rules]))


def build_trial_source(grammar: Grammar) -> str:
    """Return the source of a grammar of a client as `find_problem` of grammar_trial takes it.
    Raises SchemaError."""
    size = len(grammar.source)
    if grammar.kind == "json_schema" and size > SCHEMA_CHARS_MAX:
        raise SchemaError(f"it has {size:,} characters; the limit is {SCHEMA_CHARS_MAX:,}")
    _check_size(grammar.source)
    return llguidance.LLMatcher.grammar_from_lark(_to_lark(grammar))


def _check_size(source: str) -> None:
    size = len(source.encode())
    if size > SOURCE_BYTES_MAX:
        raise SchemaError(f"it has {size:,} bytes; the limit is {SOURCE_BYTES_MAX:,}")


class _Measured(NamedTuple):
    """A grammar that was compiled, with its first masks."""

    matcher: llguidance.LLMatcher
    problem: str
    """Why the grammar is invalid or costs too much; "" if it does not."""
    size_bytes: int
    """Memory of the grammar."""


def _compile_measured(vocabulary: llguidance.LLTokenizer, source: str) -> _Measured:
    """Compile a grammar and compute its first masks. `source`: as from `grammar_from_lark`.

    One at a time, and a grammar that is long or seems large several times, because other threads
    allocate and free memory meanwhile.
    """
    with _measuring:
        trial = try_grammar(vocabulary, source)
        sizes = [_size_of(trial, source)]
        while not trial.problem and not _agree(sizes, source):
            sizes.append(_size_of(try_grammar(vocabulary, source), source))
    size_bytes = sorted(sizes)[len(sizes) // 2]
    if size_bytes > _usual_bytes_max(source):
        size_bytes = min(sizes)
    return _Measured(trial.matcher, trial.problem or find_size_problem(size_bytes), size_bytes)


_measuring = threading.Lock()


def _size_of(trial: Trial, source: str) -> int:
    if trial.size_bytes is None:
        return min(_usual_bytes_max(source), GRAMMAR_BYTES_MAX)
    return max(_COMPILED_BYTES_MIN + _SOURCE_FACTOR_MIN * len(source), trial.size_bytes)


def _usual_bytes_max(source: str) -> int:
    return _COMPILED_BYTES_MAX + _SOURCE_FACTOR_MAX * len(source)


def _agree(sizes: list[int], source: str) -> bool:
    """Whether no further measurement is needed: one is plausible, two differ little, or there are
    three."""
    if len(sizes) == 1:
        return len(source) <= _MEASURED_ONCE_CHARS_MAX and sizes[0] <= _usual_bytes_max(source)
    return len(sizes) == 3 or max(sizes) <= 1.1 * min(sizes)


class _Use:
    """How much one compiled grammar was used, by the matchers that share its lexer."""

    __slots__ = ("charge", "charged_bytes", "has_failed", "masks_s", "size_bytes")

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        """Memory of the grammar with its first masks."""
        self.masks_s = 0.0
        """Thread time of all further masks."""
        self.has_failed = False
        """Whether it has become too complex."""
        self.charge: Callable[[], None] | None = None
        """Charges to the cache what the grammar holds now. None: it is not in a cache."""
        self.charged_bytes = 0
        """Memory of the grammar as it was charged last."""

    def add_mask(self, spent_s: float) -> None:
        """Count a mask that took so much thread time."""
        self.masks_s += spent_s
        if self.charge is not None and self.held_bytes > self.charged_bytes * _GROWTH_CHARGED:
            self.charge()

    @property
    def held_bytes(self) -> int:
        """Memory of the grammar; that of the states of its lexer is estimated."""
        states_bytes = min(int(self.masks_s * _STATES_BYTES_PER_S), _STATES_BYTES_MAX)
        return self.size_bytes + states_bytes


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
        self._use.add_mask(time.thread_time() - start_s)
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
        if self.matcher is None:
            return 500 + sys.getsizeof(self.problem)
        return self.use.held_bytes


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
                f"this model's tokenizer supports no grammars: {shorten_problem(str(error))}"
            )
        self._executor = ThreadPoolExecutor(1, "grammar")
        self._pending: dict[str, Future[_Compiled]] = {}
        self._compiled: ResidentCache[str, _Compiled] = ResidentCache(
            CACHE_BYTES_MAX, on_removed=self._release
        )
        self._trimmed_s = -_TRIM_INTERVAL_S
        self._trimmed_bytes = 0
        """Bytes that had been evicted at the last trim."""
        self._is_trim_due = False

    @property
    def size(self) -> CacheSize:
        """Size of the cache of compiled grammars."""
        return self._compiled.size

    def prepare(self, grammar: Grammar, group: str = "") -> bool:
        """Start compiling a grammar unless it is cached. `group`: the tenant whose share of the
        cache it takes.

        Returns True if `create_matcher` would return at once. Raises BadRequest if the grammar is
        too long, or if too many grammars are waiting to be compiled.
        """
        key = compute_key(grammar)
        if self._find_compiled(key, group) is not None:
            return True
        future = self._pending.get(key)
        if future is None:
            try:
                _check_size(grammar.source)
            except SchemaError as error:
                raise _make_refusal(str(error)) from None
            if len(self._pending) >= PENDING_MAX:
                raise _make_refusal(f"{PENDING_MAX} others are being compiled; try again")
            future = self._executor.submit(self._compile, grammar)
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
        key = compute_key(grammar)
        found = self._find_compiled(key, group)
        if found is None:
            found = self._compile(grammar)
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

    def _charge(self, key: str, group: str) -> None:
        """Charge what a grammar has come to hold. Any thread may call it."""
        compiled = self._compiled.get(key)
        if compiled is not None:
            self._add_compiled(key, compiled, group)

    def _add_compiled(self, key: str, compiled: _Compiled, group: str) -> None:
        use, cost_bytes = compiled.use, compiled.cost_bytes
        use.charged_bytes, use.charge = cost_bytes, functools.partial(self._charge, key, group)
        self._compiled.add(key, compiled, cost_bytes, group)
        if self._compiled.evicted_bytes - self._trimmed_bytes >= _TRIM_BYTES_MIN:
            self._trim_later()

    def _trim_later(self) -> None:
        """Give memory back now, or when _TRIM_INTERVAL_S have passed, with what is evicted until
        then."""
        if self._is_trim_due:
            return
        self._is_trim_due = True
        wait_s = max(self._trimmed_s + _TRIM_INTERVAL_S - time.monotonic(), 0.0)
        timer = threading.Timer(wait_s, self._trim)
        timer.daemon = True
        timer.start()

    def _trim(self) -> None:
        self._trimmed_bytes, self._trimmed_s = self._compiled.evicted_bytes, time.monotonic()
        self._is_trim_due = False
        give_memory_back()

    def _release(self, _key: str, compiled: _Compiled) -> None:
        """Free an evicted grammar on the compiler's thread, between the measurements there."""
        self._executor.submit(_hold, compiled)

    def _compile(self, grammar: Grammar) -> _Compiled:
        """Compile a grammar. `prepare` runs this on the compiler's thread, `create_matcher` on the
        caller's."""
        if self._vocabulary is None:
            return _Compiled(None, self._tokenizer_problem, _Use())
        try:
            source = llguidance.LLMatcher.grammar_from_lark(_to_lark(grammar))
        except SchemaError as error:
            return _Compiled(None, str(error), _Use())
        start_s = time.thread_time()
        trial = _compile_measured(self._vocabulary, source)
        if trial.problem:
            return _Compiled(None, trial.problem, _Use())
        spent_s = time.thread_time() - start_s
        return _Compiled(trial.matcher, "", _Use(trial.size_bytes), spent_s)


def _hold(_compiled: _Compiled) -> None:
    """Do nothing. The last reference to the grammar is dropped where this was called."""


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


def compute_key(grammar: Grammar) -> str:
    """Return a key of a grammar for caches."""
    return hashlib.sha256(f"{grammar.kind}\0{grammar.source}".encode()).hexdigest()


def _make_refusal(problem: str) -> BadRequest:
    return BadRequest(f"the grammar cannot be enforced: {problem}", field="grammar")
