"""Tests of `Conversation`: the ids after any edits equal those of the same history rendered anew,
and sampled ids stay as they were drawn."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from continuo.engine import ChatMessage, ChatTemplate, ModelText
from continuo.engine.errors import BadRequest
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.chat_template.template import ConversationExtension
from continuo.engine.text.tokenizer.chunked_encoding import ChunkedEncoder
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.conversation.rendering import render_tool
from continuo.realtime.conversation.tokenization import Span, Tokenization
from continuo.realtime.protocol.items import (
    ROOT,
    ContentPart,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
)
from continuo.realtime.protocol.settings import GenerationSettings, Tool
from tests.support.checkpoints import family_template

SAMPLED = (11, 12, 13, 0)
"""Letters, and the id that ends a message."""


@pytest.fixture(scope="module")
def template(chat_model: Path) -> ChatTemplate:
    template = ModelText(str(chat_model)).template
    assert template is not None
    return template


def user(name: str, text: str = "hello") -> MessageItem:
    return MessageItem(id=name, role="user", parts=(ContentPart("input_text", text),))


def assistant(name: str, text: str = "yes") -> MessageItem:
    return MessageItem(id=name, role="assistant", parts=(ContentPart("output_text", text),))


def call(name: str) -> FunctionCallItem:
    return FunctionCallItem(id=name, call_id=f"call_{name}", name="look", arguments='{"at": 1}')


def result(name: str) -> FunctionCallOutputItem:
    return FunctionCallOutputItem(id=name, call_id=f"call_{name}", output="seen")


def names(conversation: Conversation) -> list[str]:
    return [item.id for item in conversation.items()]


def test_ids_of_spans_equal_one_full_rendering(template: ChatTemplate) -> None:
    settings = GenerationSettings(instructions="be kind", tools=(Tool(name="look"),))
    conversation = Conversation.start(template, settings)
    conversation = conversation.with_items([user("a"), assistant("b"), user("c", "who are you?")])
    messages = [
        ChatMessage(role="system", content="be kind"),
        ChatMessage(role="user", content="hello"),
        ChatMessage(role="assistant", content="yes"),
        ChatMessage(role="user", content="who are you?"),
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    whole = template.render(messages, [tool], add_generation_prompt=True)
    prompt, header = conversation.render_header()
    assert prompt.ids() == conversation.ids()
    assert conversation.ids() + header == whole
    assert conversation.length == len(conversation.ids())


def test_calls_are_in_the_span_of_the_message_before_them(template: ChatTemplate) -> None:
    start = Conversation.start(template, GenerationSettings())
    parts = start.with_items([user("a"), assistant("b"), call("c"), call("d"), result("c")])
    assert [len(span.items) for span in parts.spans] == [1, 3, 1]
    assert len(start.with_items([user("a"), call("c"), assistant("b")]).spans) == 3


def with_response(conversation: Conversation, name: str) -> Conversation:
    return conversation.open_response(name).commit_response(
        name, (assistant(f"{name}.0"),), SAMPLED
    )


def test_sampled_ids_stay_as_they_were_drawn(template: ChatTemplate) -> None:
    conversation = with_response(
        Conversation.start(template, GenerationSettings()).add_item(user("a")), "r"
    )
    header = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).render_header()[1]
    )
    expected = [*header, *SAMPLED, *template.encode_ending(SAMPLED)]
    assert list(conversation.spans[1].ids) == expected
    changed = conversation.with_settings(GenerationSettings(instructions="be brief")).add_item(
        user("b"), ROOT
    )
    kept = next(span for span in changed.spans if span.response_id == "r")
    assert list(kept.ids) == expected
    assert "".join(names(changed)) == "bar.0"


def test_open_response_keeps_its_place(template: ChatTemplate) -> None:
    conversation = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).open_response("r")
    )
    conversation = conversation.add_item(user("b"))
    assert names(conversation) == ["a", "b"]
    updated = conversation.update_open_response("r", (assistant("r.0"),))
    assert names(updated) == ["a", "r.0", "b"]
    assert updated.previous_item_id("r.0") == "a"
    assert updated.previous_item_id("b") == "r.0"
    assert updated.is_in_open_response("r.0")
    committed = updated.commit_response("r", (assistant("r.0"),), SAMPLED)
    assert not committed.is_in_open_response("r.0")
    direct = with_response(
        Conversation.start(template, GenerationSettings()).add_item(user("a")), "r"
    ).add_item(user("b"))
    assert committed.ids() == direct.ids()


def test_response_without_items_leaves_no_trace(template: ChatTemplate) -> None:
    before = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    after = before.open_response("r").add_item(user("b")).commit_response("r", (), SAMPLED)
    assert after.ids() == before.add_item(user("b")).ids()


def test_deleting_one_item_of_a_response_renders_the_others_again(template: ChatTemplate) -> None:
    conversation = (
        Conversation.start(template, GenerationSettings()).add_item(user("a")).open_response("r")
    )
    conversation = conversation.commit_response("r", (assistant("b"), call("c")), SAMPLED)
    rest = conversation.delete_item("c")
    assert (
        rest.ids()
        == Conversation.start(template, GenerationSettings())
        .with_items([user("a"), assistant("b")])
        .ids()
    )


def test_unknown_item_id_raises_key_error(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    for edit in (
        lambda: conversation.delete_item("x"),
        lambda: conversation.add_item(user("b"), "x"),
        lambda: conversation.previous_item_id("x"),
    ):
        with pytest.raises(KeyError):
            edit()
    assert conversation.find("x") is None


def fresh_ids(conversation: Conversation) -> list[int]:
    """The ids of the same history, rendered span by span in order."""
    tools = tuple(render_tool(tool) for tool in conversation.tools)
    fresh = Tokenization(conversation.template, conversation.instructions or None, tools)
    for span in conversation.spans:
        fresh.add(Span(span.items, response_id=span.response_id, sampled_ids=span.sampled_ids))
    return [id for span in fresh.spans for id in span.ids]


KINDS = (
    *("user", "assistant", "reasoned", "call", "result", "response"),
    *("delete", "fork", "configure"),
)
EDITS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), max_size=14)


def edit(conversation: Conversation, kind: str, position: int, name: str) -> Conversation:
    """Apply one edit; `name` is the id of what it adds."""
    ids = names(conversation)
    makers = {"user": user, "assistant": assistant, "call": call, "result": result}
    if kind in ("delete", "fork"):
        change = conversation.delete_item if kind == "delete" else conversation.up_to_item
        return change(ids[position % len(ids)]) if ids else conversation
    if kind == "configure":
        tools = (Tool(name="look"),) * (position % 2)
        return conversation.with_settings(
            GenerationSettings(instructions="x" * (position // 2), tools=tools)
        )
    if kind == "response":
        return with_response(conversation, name)
    item: Item = (
        assistant(name, f"<think>\nhm\n</think>\n\n{name}")
        if kind == "reasoned"
        else makers[kind](name)
    )
    after = [None, ROOT, *ids][position % (2 + len(ids))]
    conversation = conversation.add_item(item, after)
    assert conversation.find(item.id) == item
    previous = conversation.previous_item_id(item.id)
    assert previous == (
        (ids[-1] if ids else None) if after is None else None if after == ROOT else after
    )
    return conversation


def edit_all(template: ChatTemplate, edits: list[tuple[str, int]]) -> Conversation:
    """Apply all edits but those that the template refuses: Llama 3 has one call in a message."""
    conversation = Conversation.start(template, GenerationSettings())
    for n, (kind, position) in enumerate(edits):
        with contextlib.suppress(BadRequest):
            conversation = edit(conversation, kind, position, f"i{n}")
    return conversation


@given(EDITS)
@example([("user", 0), ("assistant", 0), ("call", 0), ("user", 3)])
def test_any_edits_give_the_ids_of_a_fresh_rendering(
    template: ChatTemplate, edits: list[tuple[str, int]]
) -> None:
    conversation = edit_all(template, edits)
    assert len(set(names(conversation))) == len(names(conversation))
    assert conversation.ids() == fresh_ids(conversation)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral_v3", "mistral_small"])
@given(edits=EDITS)
def test_any_edits_give_the_ids_of_a_fresh_rendering_for_templates_that_revise_messages(
    family: str, edits: list[tuple[str, int]]
) -> None:
    conversation = edit_all(family_template(family), edits)
    assert conversation.ids() == fresh_ids(conversation)


def test_conversations_are_immutable(template: ChatTemplate) -> None:
    conversation = Conversation.start(template, GenerationSettings()).add_item(user("a"))
    before = conversation.ids()
    conversation.add_item(user("b"))
    conversation.delete_item("a")
    with pytest.raises(AttributeError):
        conversation.spans = ()  # type: ignore[misc]  # read-only, which is tested
    assert conversation.ids() == before
    assert msgspec.structs.replace(conversation).ids() == before


def test_work_of_a_turn_does_not_grow_with_the_conversation(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work in exact counts: extensions by the chat template, messages that they render, and
    characters that they encode."""
    template.probe_short_view()
    counts: Counter[str] = Counter()
    extend, render = ChatTemplate.extend, TemplateRenderer.try_render
    encode = ChunkedEncoder.encode

    def count_extension(self: ChatTemplate, *args: Any, **options: Any) -> ConversationExtension:
        counts["extensions"] += 1
        return extend(self, *args, **options)

    def count_messages(
        self: TemplateRenderer, messages: Sequence[ChatMessage], *args: Any, **options: Any
    ) -> str | None:
        counts["messages"] += len(messages)
        return render(self, messages, *args, **options)

    def count_chars(self: ChunkedEncoder, text: str, **options: Any) -> list[int]:
        counts["chars"] += len(text)
        return encode(self, text, **options)

    monkeypatch.setattr(ChatTemplate, "extend", count_extension)
    monkeypatch.setattr(TemplateRenderer, "try_render", count_messages)
    monkeypatch.setattr(ChunkedEncoder, "encode", count_chars)
    conversation = Conversation.start(template, GenerationSettings(instructions="be kind"))
    by_turn: list[tuple[Counter[str], int]] = []
    for turn in range(100):
        counts.clear()
        conversation = conversation.add_item(user(f"u{turn}", f"question {turn:03}"))
        conversation, _ = conversation.render_header()
        conversation = with_response(conversation, f"r{turn}")
        by_turn.append((counts.copy(), conversation.rendered_length))
    assert by_turn[-1] == by_turn[2]
    assert by_turn[-1][0]["extensions"] == 3, "the item, the header before and after the response"
    assert conversation.rendered_length < conversation.length / 30
