"""Grammars over the tokenizers of every family: whatever is drawn, what comes out is valid."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continuo.bench import random_checkpoints
from continuo.engine.errors import BadRequest
from continuo.engine.text import GrammarCompiler, ModelText, find_schema_problem
from continuo.engine.text.grammar import CACHE_BYTES_MAX, GrammarMatcher
from continuo.engine.wire.messages import Grammar
from tests.support.checkpoints import NAMES, family

SHORT = 25
"""Ids drawn at random; then whatever closes what is open."""
IDS_MAX = 2000


@cache
def grammars(name: str) -> GrammarCompiler:
    return family(name).create_grammar_compiler(family(name).vocab_size, lambda: None)


def drawn(text: ModelText, matcher: GrammarMatcher, seed: int) -> str | None:
    """What a turn says that draws any allowed id at random, then one that closes; None: it was not
    done after IDS_MAX ids. It may always go on, or end."""
    source = random.Random(seed)
    detokenizer = text.create_detokenizer()
    said = ""
    for count in range(IDS_MAX):
        mask = matcher.compute_bitmask()
        ids = [id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1]
        assert ids, f"a dead end after {said!r}"
        ends = set(ids) & set(text.stop_ids)
        if ends and (count >= SHORT or source.random() < 0.1):
            return said + detokenizer.flush()
        ids = [id for id in ids if id not in ends] or ids
        closing = [id for id in ids if text.decode([id]).strip() in ('"', "}", "]", "e", '"}')]
        id = source.choice(closing if closing and count >= SHORT else ids)
        if id in text.stop_ids:
            return said + detokenizer.flush()
        matcher.accept(id)
        said += detokenizer.push([id])
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
    def thing(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
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
            thing, st.dictionaries(names, inner, min_size=1, max_size=4), st.sets(names, max_size=2)
        ),
        st.builds(
            lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": 3},
            inner,
            st.integers(0, 2),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    )


schemas = st.recursive(leaf, nested, max_leaves=6)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(schema=schemas, seed=st.integers(0, 2**32))
def test_whatever_is_drawn_is_valid(name: str, schema: dict[str, Any], seed: int) -> None:
    text, grammar = family(name), Grammar("json_schema", json.dumps(schema))
    said = drawn(text, grammars(name).create_matcher(grammar, text.stop_ids), seed)
    assert said is not None, schema
    jsonschema.validate(json.loads(said), schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("name", NAMES)
def test_json_mode_says_an_object(name: str) -> None:
    text = family(name)
    for seed in range(10):
        said = drawn(text, grammars(name).create_matcher(Grammar("json"), text.stop_ids), seed)
        assert isinstance(json.loads(said or ""), dict)


@pytest.mark.parametrize("name", NAMES)
def test_control_tokens_are_never_part_of_a_string(name: str) -> None:
    text = family(name)
    matcher = grammars(name).create_matcher(Grammar("lark", "start: /(?s:.*)/"), text.stop_ids)
    mask = matcher.compute_bitmask()
    special = text._tokenizer.special_ids - set(text.stop_ids)  # pyright: ignore[reportPrivateUsage]
    assert not any(mask[id >> 3] >> (id & 7) & 1 for id in special)
    assert all(mask[id >> 3] >> (id & 7) & 1 for id in text.stop_ids)


def test_at_the_end_only_the_turns_own_stop_ids_may_follow() -> None:
    text = family("qwen3")
    matcher = grammars("qwen3").create_matcher(Grammar("lark", 'start: "ab"'), (7, 300))
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
        ('{"type": "object", "required": ["a"], "additionalProperties": false}', "'a'"),
        ('{"type": "array", "items": ' * 200 + "{}" + "}" * 200, "recursion"),
        ("[" * 50_000, "not JSON"),
        ("[]", "object"),
        ("{", "not JSON"),
        ('{"enum": ["' + "x" * 300_000 + '"]}', "characters"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: str, problem: str) -> None:
    found = find_schema_problem(schema)
    assert found is not None
    assert problem in found
    assert len(found) < 400
    assert "\n" not in found


def test_a_client_cannot_loosen_it() -> None:
    """`x-guidance` in a schema is an option of the library, not a keyword."""
    assert "not" in (find_schema_problem('{"not": {}, "x-guidance": {"lenient": true}}') or "")


def test_hostile_schemas_are_bounded() -> None:
    """What would blow up when written out is refused, or costs nothing until it is drawn."""
    two: dict[str, Any] = {"type": "string"}
    for _ in range(11):
        two = {"anyOf": [two, two]}
    assert find_schema_problem(json.dumps(two)) is not None
    assert (
        find_schema_problem('{"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"}')
        is None
    )
    matcher = grammars("qwen3").create_matcher(
        Grammar("json_schema", '{"type": "string", "pattern": "^(.*a.{30}|.*b.{31}|.*c.{32})$"}'),
        (0,),
    )
    assert matcher.compute_bitmask().strip(b"\0")


def test_compiled_grammars_are_kept_up_to_a_bound() -> None:
    text = family("qwen3")
    kept = text.create_grammar_compiler(text.vocab_size, lambda: None)
    size = 200_000
    for n in range(CACHE_BYTES_MAX // size + 5):
        kept.create_matcher(Grammar("lark", f'start: "{n}" // {"#" * size}'), (0,))
    assert kept._compiled_bytes <= CACHE_BYTES_MAX  # pyright: ignore[reportPrivateUsage]
    assert len(kept._compiled) == CACHE_BYTES_MAX // (size + 15)  # pyright: ignore[reportPrivateUsage]


def test_a_tokenizer_of_neither_bytes_nor_fallback_serves_all_but_grammars(tmp_path: Path) -> None:
    random_checkpoints.save_tokenizer(tmp_path)
    text = ModelText(str(tmp_path))
    said = "two words, 两字"
    assert text.decode(text.encode(said)) == said
    kept = text.create_grammar_compiler(random_checkpoints.VOCAB_SIZE, lambda: None)
    with pytest.raises(BadRequest, match="this model's tokenizer supports no grammars"):
        kept.create_matcher(Grammar("json", ""), (0,))


def test_too_long_is_refused_at_once() -> None:
    with pytest.raises(BadRequest, match="262,144"):
        grammars("qwen3").prepare(Grammar("lark", "#" * 300_000))
