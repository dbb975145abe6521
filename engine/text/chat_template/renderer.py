"""Render messages to text with the chat template's program.

Untrusted text cannot become a control token: stretches of it that look like one are marked in the
output (see `guard`), and `Tokenizer.encode_marked` encodes them as plain text.
"""

import hashlib
import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from continuo.engine.resident_cache import CacheSize, ResidentCache
from continuo.engine.text.chat_template.guard import TemplateGuard
from continuo.engine.text.chat_template.jinja_program import JinjaProgram, TemplateRefused
from continuo.engine.text.chat_template.message import ChatMessage, ToolCall, ToolDefinition
from continuo.engine.text.chat_template.reasoning_probe import (
    probe_reasoning_format,
    probe_reasoning_key,
    probe_switch,
)
from continuo.engine.text.chat_template.tool_format_probe import (
    detect_format,
    find_instructed_format,
)
from continuo.engine.text.output_channels import (
    HARMONY_REASONING,
    ReasoningFormat,
    find_reasoning_format,
)
from continuo.engine.text.tokenizer.tokenizer import Tokenizer
from continuo.engine.text.tool_format import HERMES, ToolFormat
from continuo.engine.text.tool_writer import write_calls, write_tool_prompt, write_tool_result
from continuo.engine.text.written_json import read_json, write_json

_RENDERINGS_BYTES_MAX = 16 * 1024 * 1024
"""Size of the cache of rendered texts: tokenizing one message renders the same few conversations
repeatedly."""
_RENDERING_OVERHEAD_BYTES = 2_000
_MESSAGE_BYTES = 160
"""Memory of a message without its characters."""
_CALL_ID_CHARS = 9
"""Length of call ids for templates that require a fixed length, such as Mistral's."""


PROBE_TOOL: ToolDefinition = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}


_WHOLE_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
_WHOLE_FUNCTION: dict[str, Any] = {"description": "", "parameters": _WHOLE_PARAMETERS}


_PLAIN_CALL: dict[str, Any] = {
    "type": "function",
    "id": "call00000",
    "function": {"name": "a", "arguments": {}},
}


_SystemTools = Callable[[Sequence[ToolDefinition]], object]


def _write_functions(tools: Sequence[ToolDefinition]) -> str:
    return json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)


_SYSTEM_TOOLS: tuple[_SystemTools, ...] = (_write_functions, list)
"""How templates take tools as a field of the system message: the functions as JSON text, such as
that of Phi-4-mini, or the definitions, such as that of GLM-4 9B."""


class _ToolsKey:
    """The tools of one conversation as a cache key. Two keys are equal if their tools are the same
    objects."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self.tools = tuple(tools)

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.tools)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ToolsKey) and (
            len(self.tools) == len(other.tools) and all(map(operator.is_, self.tools, other.tools))
        )


class TemplateRenderer:
    """The chat template of a checkpoint, and what it does with tools, calls and reasoning.

    Owns what was found out about the template by rendering probes, all of it in `__init__`, and a
    cache of rendered texts. Called by ChatTemplate, its variants and its probes. Always: the same
    messages give the same text, and text of users that looks like a control token is marked.
    """

    def __init__(
        self, program: JinjaProgram, tokenizer: Tokenizer, options: Mapping[str, Any]
    ) -> None:
        """`options` are passed to the template."""
        self._program = program
        self._tokenizer = tokenizer
        self._guard = TemplateGuard(program, tokenizer)
        self._options = options
        self._needs_folded_system = False
        self._written_tools: ToolFormat | None = None
        """Format that the tools in the system message ask for, because the template shows none."""
        self._written_calls: ToolFormat | None = None
        """Format in which calls are written into messages, because the template leaves them
        out, or writes them otherwise than its instructions ask."""
        self._system_tools: _SystemTools | None = None
        """How the template takes tools as a field of the system message. None: it does not."""
        self._result_role = "tool"
        """The role under which the template takes results of calls: in GLM-4's, `observation`."""
        self._writes_results = False
        """Whether results of calls become messages of the user, because the template has no
        others."""
        self._needs_whole_tools = False
        """Whether the template fails on tools without a description or arguments, so that what is
        missing is added, empty."""
        self._renderings: ResidentCache[tuple[tuple[ChatMessage, ...], _ToolsKey, bool], str] = (
            ResidentCache(_RENDERINGS_BYTES_MAX, entry_bytes_max=_RENDERINGS_BYTES_MAX)
        )
        self.mark_lookalikes = self._guard.mark_lookalikes
        self._needs_short_ids = False
        self._needs_json_arguments = False
        self._needs_named_ids = False
        self.reasoning_switch = probe_switch(self._render_plain)
        self._reasoning_key = probe_reasoning_key(self._render_plain, _PLAIN_CALL)
        """The key of a message under which the template takes reasoning. None: none, so that
        reasoning is put into the content, between its tokens."""
        self.reasoning_format = self._detect_reasoning_format()
        """The tokens around reasoning; None if there are none, or the model marks it by words."""
        system, user = (
            ChatMessage(role="system", content="a"),
            ChatMessage(role="user", content="b"),
        )
        self._needs_folded_system = self.try_render([system, user]) is None
        """Whether the template has no system role, so that system text is put into the first user
        message."""
        self._needs_json_arguments = self._probe_json_arguments(user)
        """Whether the template takes the arguments of a call as JSON text alone, such as that of
        DeepSeek V3."""
        call = ToolCall(name="c", arguments="{}", id="call_of_any_length")
        self._needs_short_ids = (
            self.try_render([user, ChatMessage(role="assistant", tool_calls=(call,))]) is None
        )
        """Whether the template enforces a length of call ids, so that an id of another length is
        rendered as a digest of the right length."""
        self._needs_named_ids = self._probe_named_ids(user)
        """Whether the template writes the id of a call in place of its name, such as that of Kimi
        K2 Thinking, so that ids must be `functions.NAME:N`, where N counts the calls of the
        conversation from 0."""
        self.tool_format = self._detect_tool_format(tokenizer)
        """The syntax of tool calls; None if the template renders calls in an unknown syntax."""
        self._renderings.clear()

    def with_options(self, options: Mapping[str, Any]) -> "TemplateRenderer":
        """Make a renderer that passes more options to the template."""
        return TemplateRenderer(self._program, self._tokenizer, {**self._options, **options})

    def accepts_options(self, options: Mapping[str, Any]) -> bool:
        """Whether the template renders a prompt with these options."""
        return self._render_plain([{"role": "user", "content": "a"}], options) is not None

    @property
    def renderings_size(self) -> CacheSize:
        """Size of the cache of rendered texts."""
        return self._renderings.size

    @property
    def marks_reasoning_by_words(self) -> bool:
        """Whether the template has reasoning, but no tokens around it, so that it is text."""
        has_switch = bool(self.reasoning_switch.on) or self.reasoning_switch.off is not None
        return self.reasoning_format is None and (has_switch or self._reasoning_key is not None)

    @property
    def mentions_reasoning(self) -> bool:
        """Whether the template itself writes a token around reasoning."""
        syntax = self.reasoning_format
        return syntax is not None and (
            syntax.is_harmony or syntax.end in self._program.template_text
        )

    def _render_plain(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str | None:
        """Render test messages with more options, and the header that follows them."""
        try:
            return self._program.render(
                messages, add_generation_prompt=True, options={**self._options, **options}
            )
        except TemplateRefused:
            return None

    def _detect_reasoning_format(self) -> ReasoningFormat | None:
        known = find_reasoning_format(self._tokenizer)
        if self._reasoning_key is None or known == HARMONY_REASONING:
            return known
        split = self._tokenizer.split_added_tokens
        return probe_reasoning_format(self._render_plain, self._reasoning_key, split) or known

    def _probe_json_arguments(self, user: ChatMessage) -> bool:
        call = ToolCall(name="c", arguments="{}", id=_PLAIN_CALL["id"])
        messages = [user, ChatMessage(role="assistant", tool_calls=(call,))]
        if self.try_render(messages) is not None:
            return False
        self._needs_json_arguments = True
        return self.try_render(messages) is not None

    def _probe_named_ids(self, user: ChatMessage) -> bool:
        call = ToolCall(name=PROBE_TOOL["function"]["name"], arguments="{}", id=_PLAIN_CALL["id"])
        text = self.try_render([user, ChatMessage(role="assistant", tool_calls=(call,))]) or ""
        self._renderings.clear()
        return call.name not in text and call.id in text

    def _detect_tool_format(self, tokenizer: Tokenizer) -> ToolFormat | None:
        """Detect the syntax of calls, and what of tools the template leaves out."""
        user, name = ChatMessage(role="user", content="a"), PROBE_TOOL["function"]["name"]
        call = ToolCall(name=name, arguments="{}", id="call00000")
        answer = ChatMessage(role="assistant", tool_calls=(call,))
        result = ChatMessage(role="tool", content="zq9result9qz", tool_call_id=call.id)
        prompt = self.try_render([user], [PROBE_TOOL]) or ""
        shows_tools = name in prompt
        if not shows_tools:
            self._system_tools = self._probe_system_tools(user)
            prompt = self.try_render([user], [PROBE_TOOL]) or ""
            shows_tools = self._system_tools is not None
        bare: ToolDefinition = {"type": "function", "function": {"name": name, "parameters": {}}}
        self._needs_whole_tools = self.try_render([user], [bare]) is None
        renders_calls = name in (self.try_render([user, answer]) or "")

        def is_token(text: str) -> bool:
            return tokenizer.id_of(text) is not None

        if not (
            is_token("<|observation|>")
            and self._shows_result([user, answer, result], "observation")
        ):
            self._writes_results = not self._shows_result([user, answer, result], "tool")
        found = detect_format(
            self.try_render, prompt if shows_tools else "", is_token, self.reasoning_format
        )
        if not renders_calls:
            found = self._written_calls = found or HERMES
        elif found is None:
            found = self._written_calls = find_instructed_format(prompt, is_token)
        if not shows_tools and found is not None and not found.is_harmony:
            self._written_tools = found
        self._renderings.clear()
        return found

    def _probe_system_tools(self, user: ChatMessage) -> "_SystemTools | None":
        name = PROBE_TOOL["function"]["name"]
        for form in _SYSTEM_TOOLS:
            self._system_tools = form
            self._renderings.clear()
            if name in (self.try_render([user], [PROBE_TOOL]) or ""):
                return form
        self._renderings.clear()
        return None

    def _shows_result(self, messages: Sequence[ChatMessage], role: str) -> bool:
        """Whether the template renders the last message, a result, as a message of `role`."""
        self._result_role = role
        self._renderings.clear()
        return messages[-1].content in (self.try_render(messages) or "")

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Render a conversation. Raises TemplateRefused if the template refuses it."""
        key = tuple(messages), _ToolsKey(tools), add_generation_prompt
        text = self._renderings.get(key)
        if text is None:
            try:
                text = self._render(key[0], key[1], prompt=add_generation_prompt)
            except RecursionError:
                problem = "its tools or the arguments of its calls are nested too deeply"
                raise TemplateRefused(f"this conversation cannot be rendered: {problem}") from None
            cost_bytes = _RENDERING_OVERHEAD_BYTES + _MESSAGE_BYTES * len(messages)
            # Messages have what the text has, and both may keep a copy in UTF-8.
            cost_bytes += 4 * sys.getsizeof(text) + sum(map(_measure_json, tools))
            self._renderings.add(key, text, cost_bytes)
        return text

    def _render(self, messages: tuple[ChatMessage, ...], tools: _ToolsKey, *, prompt: bool) -> str:
        definitions = [self._to_template_tool(tool) for tool in tools.tools]
        if self._needs_named_ids:
            messages = _name_call_ids(messages)
        if self._writes_results:
            messages = tuple(map(_to_user_message, messages))
        if self._written_tools is not None:
            messages, definitions = self._write_tools(messages, tools.tools), []
        plain = [self._to_template_message(message) for message in self._fold_system(messages)]
        if self._system_tools is not None and definitions:
            if not plain or plain[0]["role"] != "system":
                plain.insert(0, {"role": "system", "content": ""})
            plain[0]["tools"] = self._system_tools(definitions)
            definitions = []

        def render(guarded: tuple[list[dict[str, Any]], list[ToolDefinition]]) -> str:
            return self._program.render(
                *guarded, add_generation_prompt=prompt, options=self._options
            )

        return self._guard.render(render, (plain, definitions))

    def try_render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        *,
        add_generation_prompt: bool = False,
    ) -> str | None:
        """Render a conversation. Returns None if the template refuses it."""
        try:
            return self.render(messages, tools, add_generation_prompt=add_generation_prompt)
        except TemplateRefused:
            return None

    def _write_tools(
        self, messages: tuple[ChatMessage, ...], tools: Sequence[ToolDefinition]
    ) -> tuple[ChatMessage, ...]:
        """Write the tools into the system message."""
        if not tools or self._written_tools is None:
            return messages
        has_system = bool(messages) and messages[0].role == "system"
        texts = [messages[0].content] if has_system else []
        content = "\n\n".join([*texts, write_tool_prompt(self._written_tools, tools)])
        return (ChatMessage(role="system", content=content), *messages[has_system:])

    def _fold_system(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        if not (self._needs_folded_system and messages and messages[0].role == "system"):
            return messages
        system, *rest = messages
        for at, message in enumerate(rest):
            if message.role == "user":
                content = f"{system.content}\n\n{message.content}"
                rest[at] = ChatMessage(role="user", content=content)
                break
        return rest

    def _to_template_message(self, message: ChatMessage) -> dict[str, Any]:
        """Convert a message to the dictionary that templates expect."""
        plain: dict[str, Any] = {
            "role": self._result_role if message.role == "tool" else message.role,
            "content": self._guard.mark(message.content),
        }
        if message.reasoning:
            self._add_reasoning(plain, self._guard.mark(message.reasoning))
        if message.tool_calls and self._written_calls is not None:
            plain["content"] = write_calls(
                self._written_calls,
                [
                    (self._guard.mark(call.name), self._guard.mark_values(_parse_arguments(call)))
                    for call in message.tool_calls
                ],
                plain["content"],
            )
        elif message.tool_calls:
            plain["tool_calls"] = [self._to_template_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id:
            plain["tool_call_id"] = self._guard.mark(
                self._to_template_call_id(message.tool_call_id)
            )
        return plain

    def _add_reasoning(self, plain: dict[str, Any], reasoning: str) -> None:
        """Add the reasoning that precedes a message."""
        syntax = self.reasoning_format
        if self._reasoning_key is not None:
            plain[self._reasoning_key] = reasoning
        elif syntax is not None and not syntax.is_harmony:
            opening = syntax.begin + (syntax.label or "\n")
            plain["content"] = f"{opening}{reasoning}\n{syntax.end}\n\n{plain['content']}"

    def _to_template_tool(self, tool: ToolDefinition) -> ToolDefinition:
        if self._needs_whole_tools and isinstance(tool.get("function"), dict):
            function = {**_WHOLE_FUNCTION, **tool["function"]}
            function["parameters"] = {**_WHOLE_PARAMETERS, **function["parameters"]}
            tool = {**tool, "function": function}
        return cast(ToolDefinition, self._guard.mark_values(tool))

    def _to_template_call(self, call: ToolCall) -> dict[str, Any]:
        arguments = self._guard.mark_values(_parse_arguments(call))
        if self._needs_json_arguments and not isinstance(arguments, str):
            arguments = write_json(arguments)
        function = {"name": self._guard.mark(call.name), "arguments": arguments}
        return {
            "type": "function",
            "id": self._guard.mark(self._to_template_call_id(call.id)),
            "function": function,
        }

    def _to_template_call_id(self, id: str) -> str:
        if not self._needs_short_ids or len(id) == _CALL_ID_CHARS:
            return id
        return hashlib.sha256(id.encode()).hexdigest()[:_CALL_ID_CHARS]


def _to_user_message(message: ChatMessage) -> ChatMessage:
    """Write the result of a call as a message of the user. Returns other messages unchanged."""
    if message.role != "tool":
        return message
    return ChatMessage(role="user", content=write_tool_result(message.content))


def _name_call_ids(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Give each call the id `functions.NAME:N`, and each result the id of its call."""
    ids: dict[str, str] = {}
    named: list[ChatMessage] = []
    count = 0
    for message in messages:
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            ids[call.id] = f"functions.{call.name}:{count}"
            calls.append(msgspec.structs.replace(call, id=ids[call.id]))
            count += 1
        result_id = ids.get(message.tool_call_id, message.tool_call_id)
        named.append(
            msgspec.structs.replace(message, tool_calls=tuple(calls), tool_call_id=result_id)
        )
    return tuple(named)


def _parse_arguments(call: ToolCall) -> object:
    """Decode a call's arguments, as templates expect; anything but a JSON object stays text."""
    try:
        value = read_json(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return cast(object, value) if isinstance(value, dict) else call.arguments


def _measure_json(value: object) -> int:
    """Return the bytes of a JSON value and all values in it, each counted where it occurs."""
    size_bytes, left = 0, [value]
    while left:
        value = left.pop()
        size_bytes += sys.getsizeof(value)
        if isinstance(value, dict):
            left += cast(dict[object, object], value).keys()
            left += cast(dict[object, object], value).values()
        elif isinstance(value, list):
            left += cast(list[object], value)
    return size_bytes
