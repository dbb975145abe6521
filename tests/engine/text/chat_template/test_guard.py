"""No control token stands where a user's text stood, whatever a template does to the text."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from continuo.engine import ChatMessage, ChatTemplate, ToolCall
from continuo.engine.errors import BadRequest
from continuo.engine.text import ModelText
from continuo.engine.text.chat_template.guard import UnsafeText
from continuo.engine.text.chat_template.message import ToolDefinition
from tests.support.checkpoints import (
    CHATML_TOKENS,
    FAMILY_NAMES,
    PUBLISHED,
    QWEN_TAG_TOKENS,
    byte_level_tokenizer,
    family_template,
    family_text,
    write_checkpoint,
)

ALL = "all fields"
Conversation = tuple[list[ChatMessage], list[ToolDefinition]]


def converse(hostile: str, field: str, keys: Sequence[str] = ()) -> Conversation:
    """Make a conversation with a text in one field, or in all of them, and more keys of arguments
    and schemas."""
    more = dict.fromkeys(keys, "x")

    def at(name: str, usual: str) -> str:
        return hostile if field in (name, ALL) else usual

    call = ToolCall(
        name="look",
        arguments=json.dumps(
            {"city": at("argument", "Rome"), "all": [{"a": at("nested", "x"), **more}], **more}
        ),
        id=at("call id", "call00000"),
    )
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": at("type", "string"), "description": at("argument description", "d")}
            | more,
            **{key: {"type": "string"} for key in keys},
            "unit": {"type": "string", "enum": ["a", at("enum", "b")]},
        },
        "required": [at("required", "unit")],
        "$comment": at("unknown", "x"),
        **more,
    }
    function = {"name": "look", "description": at("description", "d"), "parameters": schema, **more}
    messages = [
        ChatMessage(role="system", content=at("system", "s")),
        ChatMessage(role="user", content=at("user", "u")),
        ChatMessage(role="assistant", tool_calls=(call,)),
        ChatMessage(role="tool", content=at("result", "r"), tool_call_id=call.id),
        ChatMessage(role="assistant", content=at("assistant", "a")),
        ChatMessage(role="user", content=at("last", "v")),
    ]
    return messages, [{"type": "function", "function": function, **more}]


FIELDS = (
    *("argument", "nested", "call id", "type", "argument description", "enum", "required"),
    *("unknown", "description", "system", "user", "result", "assistant", "last"),
)


def control_tokens(text: ModelText) -> list[str]:
    tokenizer = text._tokenizer  # pyright: ignore[reportPrivateUsage]
    return sorted(tokenizer._control_ids)  # pyright: ignore[reportPrivateUsage]


def count_ids(text: ModelText, ids: Sequence[int]) -> Counter[str]:
    """Count the control tokens of a prompt."""
    tokenizer = text._tokenizer  # pyright: ignore[reportPrivateUsage]
    names = {tokenizer.id_of(token): token for token in control_tokens(text)}
    return Counter(names[id] for id in ids if id in names)


def count_controls(template: ChatTemplate, text: ModelText, said: Conversation) -> Counter[str]:
    try:
        return count_ids(text, template.render(*said))
    except UnsafeText:
        raise
    except BadRequest:
        return Counter()  # the template itself refuses some conversations


every_family = pytest.mark.parametrize(
    "name", [*FAMILY_NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in PUBLISHED)]
)


@every_family
def test_no_field_becomes_a_control_token(name: str) -> None:
    template, text = family_template(name), family_text(name)
    tokens = control_tokens(text)
    hostile = "é" + "".join(f"{token}\n{token} " for token in tokens)
    for field in FIELDS:
        usual = count_controls(template, text, converse("é", field))
        assert not count_controls(template, text, converse(hostile, field)) - usual, field


@every_family
def test_no_two_fields_join_to_a_control_token(name: str) -> None:
    template, text = family_template(name), family_text(name)
    usual = count_controls(template, text, converse("é", ALL))
    for token in control_tokens(text)[:12]:
        for cut in {1, 2, len(token) // 2, len(token) - 1}:
            said = converse(f"{token[cut:]}é{token[:cut]}", ALL)
            assert not count_controls(template, text, said) - usual, (token, cut)


@every_family
def test_no_key_becomes_a_control_token_between_brackets(name: str) -> None:
    template, text = family_template(name), family_text(name)
    for cut in range(3):
        keys = {token[cut : len(token) - cut]: None for token in control_tokens(text)}
        usual = count_controls(
            template, text, converse("x", "", [f"k{at}" for at in range(len(keys))])
        )
        assert usual
        assert not count_controls(template, text, converse("x", "", list(keys))) - usual, cut


REWRITES = {
    "JSON in ASCII": "m.content | tojson(ensure_ascii=True)",
    "a Python literal": "[m.content] | string",
    "HTML": "m.content | forceescape",
    "upper case": "m.content | upper",
    "lower case": "m.content | lower",
    "title case": "m.content | title",
    "the other case": "m.content.swapcase()",
    "backwards": "m.content | reverse",
    "trimmed": "m.content | trim",
    "trimmed of letters": "m.content.strip('<1a ')",
    "a slice": "m.content[30:] if m.content | length > 30 else m.content",
    "without its ends": "m.content[1:-1]",
    "every second": "m.content[::2]",
    "digits": "m.content | replace('1', '')",
    "one by one": "m.content | list | join('')",
    "words": "m.content | replace('user', '')",
    "cut and joined": "m.content.split('+')[0] ~ m.content.split('+')[-1]",
    "without a sign": "m.content.replace('+', '')",
    "another sign": "m.content | replace('x', '<')",
    "a part of digits": "m.content.split('17')[-1]",
}
HARMLESS = {"JSON in ASCII", "a Python literal", "HTML", "trimmed"}
"""Rewritings of which no text is refused."""


@pytest.mark.parametrize("rewriting", REWRITES)
def test_text_that_a_template_rewrites_becomes_no_control_token(
    rewriting: str, tmp_path: Path
) -> None:
    tokens = [*CHATML_TOKENS, "[INST]", '<|"|>', *QWEN_TAG_TOKENS]
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        f"{{{{ ({REWRITES[rewriting]}) if m.role == 'tool' and messages[0].content == 'rewrite'"
        " else m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        "{# <tool_call> </tool_call> #}"
    )
    folder = write_checkpoint(tmp_path, byte_level_tokenizer(tokens), source)
    text = ModelText(str(folder))
    assert text.template is not None
    said = [ChatMessage(role="user", content="rewrite"), ChatMessage(role="tool", content="x" * 40)]
    usual = count_controls(text.template, text, (said, []))
    refused: list[str] = []
    for content, token in rewritten_contents(tokens):
        said[1] = ChatMessage(role="tool", content=content)
        try:
            ids = text.template.extend([], said).ids
        except UnsafeText as error:
            refused.append(str(error).replace(repr(token), ""))
        else:
            assert count_ids(text, ids) == usual, content
    assert not refused or rewriting not in HARMLESS
    assert len(set(refused)) <= 1, "an error names another token"


def rewritten_contents(tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield texts that have, or may be rewritten to, a control token, with that token."""
    for token in tokens:
        half = len(token) // 2
        yield token, token
        yield f"a user {token}", token
        yield f"{'x' * 29}{token}{token}", token
        yield f"x{token}x", token
        yield token[::-1], token
        yield token.swapcase(), token
        yield token.replace("<", "x"), token
        yield f"{token[:half]}+{token[half:]}", token
        yield "x".join(token), token
