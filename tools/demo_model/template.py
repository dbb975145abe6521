"""The chat template, once in Jinja for transformers and once in plain Python for training.

Append-stable: the text of messages[0..n] is a prefix of the text of messages[0..n+1].
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tools.demo_model.turns import Message

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
END = "<|end|>"
PAD = "<|pad|>"
CONTROL = (PAD, *ROLES, END)
"""Special tokens, which the text of a message cannot contain."""

MARKS = (
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Tags that are one token each, but ordinary text and not special tokens."""

CHAT_TEMPLATE = r"""
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro tool_list() -%}
    {{- '<tools>\n' -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{{- '\n' -}}{%- endfor -%}
    {{- '</tools>' -}}
{%- endmacro -%}
{%- if tools and not (messages and messages[0].role in ('system', 'developer')) -%}
    {{- '<|system|>' -}}{{- tool_list() -}}{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role in ('system', 'developer') -%}
        {{- '<|system|>' -}}{{- text(message.content) -}}
        {%- if tools and loop.first -%}{{- '\n\n' -}}{{- tool_list() -}}{%- endif -%}
    {%- elif message.role == 'tool' -%}
        {{- '<|tool|><tool_response>\n' -}}{{- text(message.content) -}}{{- '\n</tool_response>' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|assistant|>' -}}{{- text(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {{- '<tool_call>\n{"name": "' -}}{{- function.name -}}{{- '", "arguments": ' -}}
            {%- if function.arguments is string -%}
                {{- function.arguments -}}
            {%- else -%}
                {{- function.arguments | tojson -}}
            {%- endif -%}
            {{- '}\n</tool_call>' -}}
        {%- endfor -%}
    {%- else -%}
        {{- '<|user|>' -}}{{- text(message.content) -}}
    {%- endif -%}
    {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
""".strip()


class Segment(NamedTuple):
    """A stretch of a rendered conversation; ``learned`` if it counts in the training loss."""

    text: str
    learned: bool


def render(messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[Segment]:
    """Render a conversation to the text that the chat template gives, in segments."""
    segments: list[Segment] = []
    listing = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
    listing = f"<tools>\n{listing}</tools>" if tools else ""
    if listing and messages[0]["role"] != "system":
        segments.append(Segment(f"<|system|>{listing}{END}", False))
        listing = ""
    for message in messages:
        role, body = message["role"], _body(message)
        if role == "system" and listing:
            body, listing = f"{body}\n\n{listing}", ""
        segments.append(Segment(f"<|{role}|>", False))
        learned = role == "assistant" and not message.get("cut")
        segments.append(Segment(body + END, learned))
    return segments


def _body(message: Message) -> str:
    text = message["content"]
    if message["role"] == "tool":
        return f"<tool_response>\n{text}\n</tool_response>"
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        text += (
            f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>'
        )
    return text
