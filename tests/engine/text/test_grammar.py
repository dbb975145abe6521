"""Tests of grammars over the tokenizers of every family: any text drawn is valid."""

import json
import random
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo import engine
from continuo.bench import random_checkpoints
from continuo.engine.errors import BadRequest
from continuo.engine.sampling import Grammar
from continuo.engine.text import GrammarCompiler, ModelText, grammar_trial
from continuo.engine.text import grammar as grammar_module
from continuo.engine.text.grammar import (
    CACHE_BYTES_MAX,
    GrammarMatcher,
    build_json_rule,
    build_lark_with_fixed_separators,
)
from continuo.engine.text.grammar_trial import count_allocated_bytes
from tests.support.checkpoints import FAMILY_NAMES, family_text
from tests.support.grammar_trials import find_schema_problem

pytestmark = pytest.mark.torch

SHORT = 25
"""Number of ids drawn at random, before ids that close open structures are preferred."""
IDS_MAX = 2000


@cache
def compiler_of(name: str) -> GrammarCompiler:
    return family_text(name).create_grammar_compiler(family_text(name).vocab_size, lambda: None)


def draw_text(text: ModelText, matcher: GrammarMatcher, seed: int) -> str | None:
    """Draw allowed ids at random, then ids that close open structures, and return their text.

    Returns None if the text is not complete after IDS_MAX ids. Every step must allow an id.
    """
    source = random.Random(seed)
    detokenizer = text.create_detokenizer()
    drawn = ""
    for count in range(IDS_MAX):
        mask = matcher.compute_bitmask()
        ids = [id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1]
        assert ids, f"no id is allowed after {drawn!r}"
        ends = set(ids) & set(text.stop_ids)
        if ends and (count >= SHORT or source.random() < 0.1):
            return drawn + detokenizer.flush()
        ids = [id for id in ids if id not in ends] or ids
        closing = [id for id in ids if text.decode([id]).strip() in ('"', "}", "]", "e", '"}')]
        id = source.choice(closing if closing and count >= SHORT else ids)
        if id in text.stop_ids:
            return drawn + detokenizer.flush()
        matcher.accept(id)
        drawn += detokenizer.push([id])
    return None


leaf = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
              st.integers(-50, 50), st.integers(0, 300)),
    st.builds(lambda low, span: {"type": "number", "minimum": low, "exclusiveMaximum": low + span},
              st.integers(-9, 9), st.integers(1, 30)),
    st.builds(lambda low, span: {"type": "string", "minLength": low, "maxLength": low + span},
              st.integers(0, 3), st.integers(0, 12)),
    st.just({"type": "string", "pattern": "^[A-Z][a-z]{1,4}(-[0-9]{2})?$"}),
    st.just({"type": "string", "format": "ipv4"}),
    st.builds(lambda values: {"enum": values},
              st.lists(st.text(max_size=6) | st.integers(-9, 9) | st.none(), min_size=1,
                       max_size=4, unique_by=repr)),
    st.builds(lambda value: {"const": value}, st.text(max_size=8)),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def object_schema(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
        required = [name for name in properties if name not in optional]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    names = st.sampled_from(["a", "b c", "ü", "name", "x\n"])
    return st.one_of(
        st.builds(
            object_schema,
            st.dictionaries(names, inner, min_size=1, max_size=4),
            st.sets(names, max_size=2),
        ),
        st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": 3},
            inner,
            st.integers(0, 2),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


schemas = st.recursive(leaf, nested, max_leaves=6)


@pytest.mark.parametrize("name", FAMILY_NAMES)
@settings(max_examples=25, deadline=None)
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_drawn_text_is_valid_under_its_schema(name: str, schema: dict[str, Any], seed: int) -> None:
    text, grammar = family_text(name), Grammar("json_schema", json.dumps(schema))
    drawn = draw_text(text, compiler_of(name).create_matcher(grammar, text.stop_ids), seed)
    assert drawn is not None, schema
    jsonschema.validate(json.loads(drawn), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_json_mode_produces_an_object(name: str) -> None:
    text = family_text(name)
    for seed in range(10):
        drawn = draw_text(
            text, compiler_of(name).create_matcher(Grammar("json"), text.stop_ids), seed
        )
        assert isinstance(json.loads(drawn or ""), dict)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_control_tokens_are_never_allowed_in_a_string(name: str) -> None:
    text = family_text(name)
    matcher = compiler_of(name).create_matcher(Grammar("lark", "start: /(?s:.*)/"), text.stop_ids)
    mask = matcher.compute_bitmask()
    special = text._tokenizer.special_ids - set(text.stop_ids)  # pyright: ignore[reportPrivateUsage]
    assert not any(mask[id >> 3] >> (id & 7) & 1 for id in special)
    assert all(mask[id >> 3] >> (id & 7) & 1 for id in text.stop_ids)


def test_only_stop_ids_of_the_turn_are_allowed_at_the_end() -> None:
    text = family_text("qwen3")
    matcher = compiler_of("qwen3").create_matcher(Grammar("lark", 'start: "ab"'), (7, 300))
    for id in text.encode("ab"):
        assert not matcher.compute_bitmask()[7 >> 3] >> 7 & 1
        matcher.accept(id)
    mask = matcher.compute_bitmask()
    assert [id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1] == [7, 300]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('{"not": {"type": "string"}}', "not"),
        ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('{"type": "string", "pattern": "(?=a)"}', "look"),
        ('{"type": "string", "format": "colour"}', "colour"),
        ('{"$ref": "file:///etc/passwd"}', "file:///etc/passwd"),
        ('{"$ref": "https://example.com/x"}', "example.com"),
        ('{"$ref": "#"}', "refers to itself"),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "refers to itself"),
        (
            '{"$ref": "#/$defs/a", '
            '"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
            "refers to itself",
        ),
        ('{"type": "object", "required": ["a"], "additionalProperties": false}', "'a'"),
        ('{"type": "array", "items": ' * 200 + "{}" + "}" * 200, "recursion"),
        ("[" * 50_000, "not JSON"),
        ("[]", "object"),
        ("{", "not JSON"),
        ('{"enum": ["' + "x" * 300_000 + '"]}', "characters"),
    ],
)
def test_unenforceable_schema_is_refused(schema: str, problem: str) -> None:
    message = find_schema_problem(schema)
    assert message is not None
    assert problem in message
    assert len(message) < 400
    assert "\n" not in message


@pytest.mark.parametrize(
    "schema",
    [
        '{"$ref": "#/$defs/a", '
        '"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}',
        '{"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}',
        '{"type": "array", "items": {"$ref": "#"}}',
        "true",
    ],
)
def test_recursive_schema_that_has_values_is_accepted(schema: str) -> None:
    assert find_schema_problem(schema) is None


def test_schema_cannot_enable_lenient_mode() -> None:
    """`x-guidance` in a schema is an option of the library, not a keyword of JSON Schema."""
    assert "not" in (find_schema_problem('{"not": {}, "x-guidance": {"lenient": true}}') or "")


def test_hostile_schemas_are_refused_or_compiled_lazily() -> None:
    """A schema of exponential size is refused, or costs no time until ids are drawn."""
    nested_schema: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        nested_schema = {"anyOf": [nested_schema, nested_schema]}
    assert find_schema_problem(json.dumps(nested_schema)) is not None
    assert (
        find_schema_problem('{"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}')
        is None
    )
    matcher = compiler_of("qwen3").create_matcher(
        Grammar("json_schema", '{"type": "string", "pattern": "^(.*a.{30}|.*b.{31}|.*c.{32})$"}'),
        (0,),
    )
    assert matcher.compute_bitmask().strip(b"\0")


COSTLY_GRAMMARS = f"""
import gc
import json
import random
import sys
from continuo.engine.sampling import Grammar
from continuo.engine.text import ModelText
from continuo.engine.allocator import give_memory_back

def resident_bytes():
    gc.collect()
    give_memory_back()
    return int(open("/proc/self/statm").read().split()[1]) * {resource.getpagesize()}

def turn(compiler, schema, source, ids):
    matcher = compiler.create_matcher(Grammar("json_schema", schema), (0,))
    for _ in range(ids):
        mask = matcher.compute_bitmask()
        allowed = [id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1]
        if not allowed:
            return
        matcher.accept(source.choice(allowed))

def costly_schemas(kind):
    match kind:
        case "patterns":  # of 80 characters, whose lexers come to hold megabytes
            for n in range(60):
                pattern = f"^(.*a{{n}}.{{{{300}}}}|.*b.{{{{310}}}}|.*c.{{{{320}}}})$"
                yield {{"type": "string", "pattern": pattern}}
        case "small":  # each has all of JSON in it
            for n in range(700):
                yield {{"properties": {{f"{{n}}": {{}}}}}}
        case "subschemas":  # megabytes each
            for n in range(16):
                yield {{"prefixItems": [{{"maxLength": n + m}} for m in range(800)]}}
        case "literals":  # whose first masks take megabytes
            for n in range(24):
                yield {{"const": f"{{n}}" + "x" * 10_000}}

text = ModelText(sys.argv[1])
compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
source = random.Random(1)
turn(compiler, '{{"type": "object"}}', source, 20)
before = resident_bytes()
for schema in costly_schemas(sys.argv[2]):
    turn(compiler, json.dumps(schema), source, 60 if sys.argv[2] == "patterns" else 3)
compiler._executor.submit(int).result()  # frees what was evicted
held, counted = resident_bytes() - before, compiler.size.held_bytes
compiler._compiled.clear()
compiler._executor.submit(int).result()
print(held, resident_bytes() - before, counted, compiler.size.held_bytes)
"""


@pytest.mark.parametrize("kind", ["patterns", "small", "subschemas", "literals"])
def test_costly_grammars_stay_within_their_memory_and_give_it_back(kind: str) -> None:
    folder = Path(engine.__file__).parent / "bundled" / "demo"
    done = subprocess.run(
        [sys.executable, "-c", COSTLY_GRAMMARS, folder, kind],
        capture_output=True,
        text=True,
        check=True,
    )
    held, left, counted, counted_left = map(int, done.stdout.split())
    assert held <= CACHE_BYTES_MAX * 1.2
    assert left <= 20_000_000
    assert CACHE_BYTES_MAX / 4 < counted <= CACHE_BYTES_MAX
    assert counted_left == 0


@pytest.mark.parametrize(
    "schema",
    [{"prefixItems": [{"maxLength": n} for n in range(1_500)]}, {"const": "x" * 30_000}],
    ids=["subschemas", "literal"],
)
def test_schema_that_takes_too_much_memory_is_refused_and_not_kept(
    schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trial, "MASKS_S_MAX", 60.0)  # not what this test is about
    source = json.dumps(schema)
    assert "of memory; the limit is 8" in (find_schema_problem(source) or "")
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    with pytest.raises(BadRequest, match="of memory; the limit is 8"):
        compiler.create_matcher(Grammar("json_schema", source), (0,))
    assert compiler.size.held_bytes < 1_000


def test_grammars_that_are_compiled_at_the_same_time_are_measured_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory that one thread allocates must not count for the grammar of another."""
    measuring = list[int]()
    overlaps = threading.Event()

    def count_and_wait_for_another() -> int | None:
        measuring.append(threading.get_ident())
        if len(measuring) == 1:
            overlaps.wait(0.5)  # time for another thread to measure as well, if it can
        elif measuring[-1] != measuring[0]:
            overlaps.set()
        return count_allocated_bytes()

    monkeypatch.setattr(grammar_trial, "count_allocated_bytes", count_and_wait_for_another)
    compiler = compiler_of("qwen3")
    grammars = [Grammar("lark", f'start: "measured apart {n}"') for n in range(2)]
    with ThreadPoolExecutor(2) as threads:
        matchers = threads.map(compiler.create_matcher, grammars, [(0,), (0,)])
        assert all(matcher.compute_bitmask().strip(b"\0") for matcher in matchers)
    first = measuring.index(next(one for one in measuring if one != measuring[0]))
    assert measuring[0] not in measuring[first:], "both measured at the same time"


def test_grammar_of_many_ordinary_tools_is_compiled() -> None:
    """The most tools of a request, each with ten arguments."""
    argument = {"type": "string", "description": "what it is"}
    arguments = {f"argument_{n}": argument for n in range(10)}
    schema = json.dumps({"type": "object", "properties": arguments, "required": [*arguments]})
    rules = [f'tool_{n}: "{n}" {build_json_rule(schema)}' for n in range(128)]
    start = "start: " + " | ".join(f"tool_{n}" for n in range(128))
    source = "\n".join([start, *rules])
    compiler_of("qwen3").create_matcher(Grammar("lark", source), (0,))


def test_ordinary_schema_costs_little() -> None:
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    compiler.create_matcher(Grammar("json_schema", '{"type": "object"}'), (0,))
    assert 0 < compiler.size.held_bytes < 1_000_000


def test_long_grammars_are_evicted() -> None:
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    for n in range(130):
        compiler.create_matcher(Grammar("lark", f'start: "{n}" // {"#" * 200_000}'), (0,))
    assert CACHE_BYTES_MAX // 2 < compiler.size.held_bytes <= CACHE_BYTES_MAX


def test_grammar_that_became_too_complex_is_compiled_again() -> None:
    """The turn fails; those after it do not share the states that it has added."""
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    grammar = Grammar("json_schema", '{"type": "string", "pattern": "^[a-z]{1,99}$"}')
    matcher = compiler.create_matcher(grammar, (0,))
    assert compiler.prepare(grammar)
    use = matcher._use  # pyright: ignore[reportPrivateUsage]
    use.has_failed = True
    again = compiler.create_matcher(grammar, (0,))
    assert again._use is not use  # pyright: ignore[reportPrivateUsage]
    assert again.compute_bitmask().strip(b"\0")


def test_memory_of_the_last_evicted_grammars_is_given_back_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the interval since the trim before has not passed when they are evicted."""
    trims = threading.Semaphore(0)
    monkeypatch.setattr(grammar_module, "_TRIM_INTERVAL_S", 0.1)
    monkeypatch.setattr(grammar_module, "_TRIM_BYTES_MIN", 1)
    monkeypatch.setattr(grammar_module, "CACHE_BYTES_MAX", 1024 * 1024)
    monkeypatch.setattr(grammar_module, "give_memory_back", trims.release)
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    for n in range(80):
        compiler.create_matcher(Grammar("lark", f'start: "{n}" // {"#" * 10_000}'), (0,))
        if n == 70:
            assert trims.acquire(timeout=20)
    assert trims.acquire(timeout=20)


def test_slow_first_masks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "MASKS_S_MAX", 0.0)
    schema = '{"type": "string", "pattern": "^slow$"}'
    assert "first masks" in (find_schema_problem(schema) or "")
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    with pytest.raises(BadRequest, match="first masks"):
        compiler.create_matcher(Grammar("json_schema", schema), (0,))


def test_tokenizer_without_byte_tokens_supports_no_grammars(tmp_path: Path) -> None:
    random_checkpoints.save_tokenizer(tmp_path)
    text = ModelText(str(tmp_path))
    sample = "two words, 两字"
    assert text.decode(text.encode(sample)) == sample
    compiler = text.create_grammar_compiler(random_checkpoints.VOCAB_SIZE, lambda: None)
    with pytest.raises(BadRequest, match="this model's tokenizer supports no grammars"):
        compiler.create_matcher(Grammar("json", ""), (0,))


def test_too_long_grammar_is_refused() -> None:
    with pytest.raises(BadRequest, match="262,144"):
        compiler_of("qwen3").prepare(Grammar("lark", "#" * 300_000))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json"),
        Grammar("json_schema", '{"type": "object"}'),
        Grammar("lark", "start: json\njson: " + build_json_rule('{"type": "object"}')),
    ],
    ids=["json", "schema", "within Lark"],
)
def test_json_with_fixed_separators_has_no_other_whitespace(grammar: Grammar) -> None:
    text = family_text("qwen3")
    compiler = text.create_grammar_compiler(text.vocab_size, lambda: None)
    fixed = Grammar("lark", build_lark_with_fixed_separators(grammar))
    for value, is_allowed in (
        ('{"a": 1, "b": [true, {}]}', True),
        ('{"a":1}', False),
        ('{ "a": 1}', False),
        ('{"a":  1}', False),
    ):
        ids = text.encode(value)
        assert compiler.create_matcher(grammar, (0,)).count_allowed(ids) == len(ids)
        allowed = compiler.create_matcher(fixed, (0,)).count_allowed(ids)
        assert (allowed == len(ids)) == is_allowed, value


def test_schema_that_is_no_object_has_no_lark() -> None:
    with pytest.raises(BadRequest, match="JSON object"):
        build_lark_with_fixed_separators(Grammar("json_schema", "[]"))
